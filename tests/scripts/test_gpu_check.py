"""scripts/gpu_check: a trial run on the simulated device, and its small parts."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uvmalloc.libraries import find_libraries

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
MEASUREMENTS = ROOT / "docs" / "measurements"


@pytest.fixture(scope="module")
def gpu_check() -> Any:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("gpu_check")
    finally:
        sys.path.remove(str(SCRIPTS))


def measurement_files() -> list[Path]:
    return sorted(MEASUREMENTS.rglob("*"))


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The JSON and the page that a run on the simulated device writes."""
    output = tmp_path_factory.mktemp("measurements")
    build = find_libraries().folder.parent
    before = measurement_files()
    stray = ("LD_", "UVMSIM_")
    done = subprocess.run(
        [SCRIPTS / "gpu_check", "--simulated", "--build", build, "--output", output],
        env={name: value for name, value in os.environ.items() if not name.startswith(stray)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert measurement_files() == before
    assert sorted(file.name for file in output.iterdir()) == [
        "uvm-simulated-device.json",
        "uvm-simulated-device.md",
    ]
    name = output / "uvm-simulated-device"
    return json.loads(name.with_suffix(".json").read_text()), name.with_suffix(".md").read_text()


def test_every_section_is_there_in_order(trial: tuple[dict[str, Any], str], gpu_check: Any) -> None:
    results, page = trial
    assert list(results) == ["device", *gpu_check.SECTIONS]
    titles = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert titles == [title for title, _ in gpu_check.SECTIONS.values()]
    assert "Failed:" not in page


def test_the_limit_is_a_quarter_of_what_is_free(trial: tuple[dict[str, Any], str]) -> None:
    device = trial[0]["device"]
    assert device["simulated"] is True
    assert device["managed_limit_bytes"] == min(8 << 30, device["free_bytes"] // 4)


def test_the_driver_was_asked_everything(trial: tuple[dict[str, Any], str]) -> None:
    results, _ = trial
    assert list(results["hints"]) == [
        "advise_preferred_device",
        "advise_preferred_host",
        "advise_accessed_by_device",
        "advise_read_mostly",
        "prefetch_to_device",
        "prefetch_to_host",
        "discard",
    ]
    one = results["hints"]["prefetch_to_device"]["16_mib"]
    assert list(one) == ["nowhere", "by_host", "by_device"]
    assert list(one["by_host"]) == [
        "result",
        "first_call_us",
        "first_done_us",
        "repeated_call_us",
        "repeated_done_us",
    ]
    assert results["alignment"]["16_mib"]["aligned_to_2_mib"] is True
    assert list(results["prefetch_to_host"]) == ["on_an_idle_stream", "behind_other_work"]
    assert results["default_stream_event"]["synchronized_here"] == "CUDA_SUCCESS"
    assert results["call_costs"]["is_capturing_of_own_stream_ns"] > 0
    assert list(results["capture"]) == ["global", "thread_local", "relaxed"]
    for by_thread in results["capture"].values():
        assert list(by_thread) == ["same_thread", "other_thread"]
        # What the simulated device refuses, and what that does to the capture.
        assert by_thread["same_thread"]["nothing"]["capture"] == "CUDA_SUCCESS"
        assert by_thread["same_thread"]["prefetch_on_capturing"] == {
            "result": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            "capture": "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        }


def test_programs_ran_with_and_without_uvmalloc(trial: tuple[dict[str, Any], str]) -> None:
    results, _ = trial
    assert results["conformance"]["failed"] == 0
    assert results["conformance"]["passed"] > 20
    training = results["training"]["small_model"]
    assert training["losses"] == "equal_bit_for_bit"
    assert training["uvmalloc_over_native"] > 0
    assert training["moves"]["total"] > 0
    assert set(results["pairs"]["native_over_uvmalloc"]) == set(results["pairs"]["native_ns"])


def test_the_conformance_tests_refuse_a_device_that_was_not_named() -> None:
    libraries = find_libraries().folder
    done = subprocess.run(
        [libraries.parent / "bin" / "conformance_test", "--gtest_filter=CudaRuntime.*"],
        env={"UVM_TEST_DEVICE": "real", "LD_LIBRARY_PATH": str(libraries / "sim")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "UVM_TEST_DEVICE is 'real', but the device is simulated" in done.stdout


def test_losses_are_compared_bit_for_bit_and_then_within_a_tolerance(gpu_check: Any) -> None:
    assert gpu_check.compare_losses([1.5, 2.0], [1.5, 2.0]) == ("equal_bit_for_bit", 0.0)
    outcome, difference = gpu_check.compare_losses([1.0], [1.000001])
    assert (outcome, difference) == ("within_1e-5", pytest.approx(1e-6, rel=1e-3))
    assert gpu_check.compare_losses([1.0], [1.001])[0] == "different"
    assert gpu_check.compare_losses([1.0], [math.nan])[0] == "different"
    assert gpu_check.compare_losses([1.0], [1.0, 1.0])[0] == "different"


def test_a_device_name_becomes_a_file_name(gpu_check: Any) -> None:
    assert gpu_check.slug("NVIDIA GeForce RTX 3080 Ti") == "nvidia-geforce-rtx-3080-ti"
    assert gpu_check.slug("(tm)") == "tm"
    assert gpu_check.slug("") == "device"
