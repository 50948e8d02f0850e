"""The command `uvmalloc` with HIP devices, and with the real HIP library but no device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uvmalloc._cli.environment import without_settings
from uvmalloc.libraries import find_libraries

COMMAND = Path(sys.executable).with_name("uvmalloc")
DEBIANS = Path("/usr/lib/x86_64-linux-gnu/libamdhip64.so.5")


def doctor(*before: str, **variables: str) -> dict[str, Any]:
    environment = {**without_settings(os.environ, "HSA_", "HIP_", "LD_"), **variables}
    done = subprocess.run(
        [COMMAND, *before, *([COMMAND] if before else []), "doctor", "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_sim_with_hip_gives_a_device_that_uvmalloc_uses() -> None:
    found = doctor("sim", "--no-report", "--hip", "--capacity", "1GiB", "--")
    assert found["runtime"]["name"] == "hip" and found["usable"] is True
    (device,) = found["devices"]
    assert device["capabilities"]["migrates_on_fault"] is True
    assert device["capabilities"]["prefetch_blocks"] is True
    assert device["total_bytes"] == 1 << 30


def test_a_library_of_a_major_version_to_come_is_found(tmp_path: Path) -> None:
    libraries = find_libraries()
    for major in (9, 11):
        copy = tmp_path / f"libamdhip64.so.{major}"
        copy.write_bytes((libraries.hip_stand_ins / "libamdhip64.so.7").read_bytes())
    folders = f"{tmp_path}:{libraries.stand_ins}:{libraries.hip_stand_ins}"
    program = (
        "import ctypes, json, sys; library = ctypes.CDLL(sys.argv[1])\n"
        "text = ctypes.create_string_buffer(1 << 20)\n"
        "library.uvmalloc_doctor_json(text, ctypes.c_size_t(len(text)))\n"
        "found = json.loads(text.value)\n"
        "print(found['runtime']['name'], len(found['devices']))\n"
        "print(*(line.split()[-1] for line in open('/proc/self/maps') if 'amdhip64' in line))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, libraries.uvmalloc],
        env={
            **without_settings(os.environ, "HSA_", "HIP_", "LD_"),
            **{"LD_LIBRARY_PATH": folders, "UVMALLOC_RUNTIME": "hip", "HSA_XNACK": "1"},
            "UVMSIM_PROFILE": "hmm",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, maps = done.stdout.splitlines()
    assert first == "hip 1"
    assert set(maps.split()) == {str(tmp_path / "libamdhip64.so.11")}


@pytest.mark.parametrize("profile", ["discrete", "integrated"])
def test_a_card_without_xnack_is_not_used(profile: str) -> None:
    found = doctor("sim", "--no-report", "--hip", "--profile", profile, "--")
    assert found["usable"] is False
    assert found["devices"][0]["capabilities"]["migrates_on_fault"] is False
    assert "XNACK is off" in json.dumps(found)


def test_xnack_is_as_the_user_sets_it() -> None:
    assert doctor("sim", "--no-report", "--hip", "--", HSA_XNACK="0")["usable"] is False
    assert doctor("sim", "--no-report", "--hip", "--", HSA_XNACK="1")["usable"] is True


def test_the_example_in_cpp_does_the_same_on_cuda_and_on_hip() -> None:
    demo = Path(__file__).resolve().parents[2] / "scripts" / "demo_hip.py"
    done = subprocess.run(
        [sys.executable, demo],
        env=without_settings(os.environ, "HSA_", "HIP_"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runtime cuda: UVM Simulated Device, 256 MiB" in done.stdout
    assert "runtime hip: UVM Simulated Device, 256 MiB" in done.stdout
    assert done.stdout.endswith("demo: the C++ example does the same on CUDA and on HIP\n")


def test_the_driver_version_is_cudas() -> None:
    done = subprocess.run(
        [COMMAND, "sim", "--hip", "--driver-version", "12.8", "--", "true"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--driver-version" in done.stderr and "nothing with --hip" in done.stderr


@pytest.mark.skipif(not DEBIANS.exists(), reason="Debian's HIP runtime is not installed")
def test_the_real_library_without_a_device_is_said_and_nothing_breaks() -> None:
    found = doctor(UVMALLOC_RUNTIME="hip")
    assert found["usable"] is False
    assert found["runtime"]["available"] is False
    assert "hip: no HIP device is visible" in json.dumps(found)
