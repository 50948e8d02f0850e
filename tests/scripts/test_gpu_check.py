"""scripts/gpu_check: a trial run on the simulated device, and its parts."""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from uvmalloc._cli.environment import without_settings
from uvmalloc.libraries import find_libraries

from tests.conftest import MakeOnce

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
TOOLS = ROOT / "tools"
MEASUREMENTS = ROOT / "docs" / "measurements"


@pytest.fixture(scope="module")
def gpu_check() -> Any:
    """Imports the package, with its modules as attributes."""
    sys.path.insert(0, str(TOOLS))
    try:
        importlib.import_module("gpu_check.command")  # imports the other modules
        return importlib.import_module("gpu_check")
    finally:
        sys.path.remove(str(TOOLS))


def measurement_files() -> list[Path]:
    return sorted(MEASUREMENTS.rglob("*"))


def run_trial(output: Path) -> None:
    build = find_libraries().folder.parent
    before = measurement_files()
    done = subprocess.run(
        [SCRIPTS / "gpu_check", "--simulated", "--build", build, "--output", output],
        env=without_settings(os.environ, "LD_"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert measurement_files() == before


@pytest.fixture(scope="module")
def trial(make_once: MakeOnce) -> tuple[dict[str, Any], str]:
    """Returns the JSON and the page that a run on the simulated device writes."""
    output = make_once("gpu_check", run_trial)
    assert sorted(file.name for file in output.iterdir()) == [
        "uvm-simulated-device.json",
        "uvm-simulated-device.md",
    ]
    name = output / "uvm-simulated-device"
    return json.loads(name.with_suffix(".json").read_text()), name.with_suffix(".md").read_text()


def test_every_section_is_there_in_order(trial: tuple[dict[str, Any], str], gpu_check: Any) -> None:
    results, page = trial
    assert list(results) == ["device", *gpu_check.document.SECTIONS]
    titles = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert titles == [title for title, _ in gpu_check.document.SECTIONS.values()]
    assert "Failed:" not in page
    assert results["served_training"]["calls_served"] > 0


def test_the_limit_is_a_quarter_of_what_is_free(trial: tuple[dict[str, Any], str]) -> None:
    device = trial[0]["device"]
    assert device["simulated"] is True
    assert device["managed_limit_bytes"] == min(8 << 30, device["free_bytes"] // 4)


def test_every_question_went_to_the_driver(trial: tuple[dict[str, Any], str]) -> None:
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
        # What the simulated device refuses, and how that affects the capture.
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


def names_of_tests(program: Path, gtest_filter: str) -> set[str]:
    done = subprocess.run(
        [program, "--gtest_list_tests", f"--gtest_filter={gtest_filter}"],
        capture_output=True,
        text=True,
        check=True,
    )
    names, suite = set(), ""
    for line in done.stdout.splitlines():
        if not line.startswith(" "):
            suite = line.split()[0]
        else:
            names.add(suite + line.split()[0])
    return names


def test_a_program_of_cuda_alone_ran_with_and_without_the_preload(
    trial: tuple[dict[str, Any], str],
) -> None:
    measured = trial[0]["any_program"]
    if "not_measured" in measured:
        assert shutil.which("nvcc") is None
        return
    assert set(measured) == {"shared_runtime_driver_ns", "shared_runtime_uvmalloc_ns"}
    assert all(nanoseconds > 0 for times in measured.values() for nanoseconds in times.values())


def test_all_conformance_tests_of_cuda_and_no_others_meet_the_driver(gpu_check: Any) -> None:
    program = find_libraries().folder.parent / "bin" / "conformance_test"
    every = names_of_tests(program, "*")
    met = names_of_tests(program, gpu_check.measurements.CONFORMANCE_TESTS)
    others = {name for name in every if "/fake" in name or "/host_threads" in name}
    assert every - met == others
    assert any(name.startswith("CudaCapture.") for name in met)


def written(folder: Path, name: str, text: str) -> Path:
    """Writes a program and returns its file."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!{sys.executable}\n{text}")
    file.chmod(0o755)
    return file


RESULTS = {"testsuites": [{"name": "A", "testsuite": [{"name": "B", "result": "COMPLETED"}]}]}


@pytest.mark.parametrize(("end", "passes"), [("sys.exit(0)", True), ("os.abort()", False)])
def test_a_suite_that_crashes_at_its_end_has_failed(
    end: str, passes: bool, gpu_check: Any, tmp_path: Path
) -> None:
    written(
        tmp_path,
        "conformance_test",
        "import json, os, sys\n"
        "file = [word for word in sys.argv if 'output=json:' in word][0].split(':', 1)[1]\n"
        "with open(file, 'w') as out:\n"
        f"    json.dump({RESULTS}, out)\n{end}\n",
    )
    place = gpu_check.place.Place(True, tmp_path)
    if passes:
        assert (
            gpu_check.measurements.conformance(place, gpu_check.subprograms.Clock(), tmp_path)[
                "passed"
            ]
            == 1
        )
    else:
        with pytest.raises(gpu_check.subprograms.CheckError, match="ended with exit code -6"):
            gpu_check.measurements.conformance(place, gpu_check.subprograms.Clock(), tmp_path)


def test_what_a_program_that_takes_too_long_has_started_ends_too(
    gpu_check: Any, tmp_path: Path
) -> None:
    program = written(
        tmp_path,
        "program",
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open('{tmp_path}/child', 'w').write(str(child.pid))\ntime.sleep(60)\n",
    )
    with pytest.raises(gpu_check.subprograms.CheckError, match="was still running after 3 s"):
        gpu_check.subprograms.run([str(program)], os.environ, 3, "program")
    status = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    deadline = time.monotonic() + 30
    # A zombie counts as ended, because possibly no process collects it.
    while status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_section_that_the_probe_could_not_measure_is_a_failure(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = {"name": "a device", "simulated": True, "total_bytes": 8192 << 20}
    device["managed_limit_bytes"] = 4096 << 20
    probed = {"device": device, "hints": {"failed": "no hint"}, "alignment": {"a": 1}}
    monkeypatch.setattr(gpu_check.check, "probe", lambda *_: probed)
    stages = ("conformance", "pairs", "any_program", "train")
    for stage in (*stages, "random_moves", "served_training", "evictions"):
        monkeypatch.setattr(gpu_check.check, stage, lambda *_: {})
    check = gpu_check.check.Check(
        gpu_check.place.Place(True, tmp_path), gpu_check.subprograms.Clock(), tmp_path
    )
    check.run()
    assert check.failures == ["hints: no hint"]
    assert check.results["alignment"] == {"a": 1}


def test_what_is_carried_to_a_machine_without_network_is_found_and_needed(
    gpu_check: Any, tmp_path: Path
) -> None:
    deps = tmp_path / "deps"
    gpu_check.carried.gather_system_sources(deps)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(carried LANGUAGES CXX)\n"
        "set(UVMALLOC_BUILD_TOOLS ON)\n"
        f"include({ROOT}/cmake/uvmalloc_headers.cmake)\n"
        "find_package(GTest REQUIRED)\n"
        "add_executable(program program.cpp)\n"
        "target_compile_definitions(program PRIVATE FMT_HEADER_ONLY)\n"
        "foreach(name fmt json cli11)\n"
        "  target_link_libraries(program PRIVATE uvmalloc_${name}_headers)\n"
        "endforeach()\n"
    )
    (tmp_path / "program.cpp").write_text(
        "#include <CLI/CLI.hpp>\n#include <fmt/format.h>\n#include <nlohmann/json.hpp>\n"
        'int main() { fmt::print("{}\\n", nlohmann::json{1, 2}.dump()); }\n'
    )
    build = tmp_path / "build"
    for command in (
        [
            "cmake",
            "-S",
            tmp_path,
            "-B",
            build,
            "-GNinja",
            f"-DCMAKE_PREFIX_PATH={deps}",
            "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
        ],
        ["cmake", "--build", build, "--target", "program"],
        [build / "program"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "[1,2]\n"
    assert str(deps) in (build / "build.ninja").read_text()
    includes = {
        line.split("<")[1].split("/")[0]
        for room in ("allocator", "hints", "pytorch", "preload", "runtime", "storage", "tools")
        for file in (ROOT / room).rglob("*.[ch]pp")
        for line in file.read_text().splitlines()
        if line.startswith("#include <") and "/" in line
    }
    carried = {folder.name for folder in (deps / "include").iterdir()}
    assert carried == includes & {"CLI", "fmt", "nlohmann", "boost", "absl"}


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
    assert gpu_check.training.compare_losses([1.5, 2.0], [1.5, 2.0]) == ("equal_bit_for_bit", 0.0)
    outcome, difference = gpu_check.training.compare_losses([1.0], [1.000001])
    assert (outcome, difference) == ("within_1e-5", pytest.approx(1e-6, rel=1e-3))
    assert gpu_check.training.compare_losses([1.0], [1.001])[0] == "different"
    assert gpu_check.training.compare_losses([1.0], [math.nan])[0] == "different"
    assert gpu_check.training.compare_losses([1.0], [1.0, 1.0])[0] == "different"


def test_a_device_name_becomes_a_file_name(gpu_check: Any) -> None:
    assert gpu_check.document.slug("NVIDIA GeForce RTX 3080 Ti") == "nvidia-geforce-rtx-3080-ti"
    assert gpu_check.document.slug("(tm)") == "tm"
    assert gpu_check.document.slug("") == "device"


def model(*options: str) -> subprocess.CompletedProcess[str]:
    build = str(find_libraries().folder.parent)
    return subprocess.run(
        [SCRIPTS / "gpu_check", "--simulated", "--build", build, *options],
        env=without_settings(os.environ, "LD_"), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_the_model_beside_a_machine_that_stands_for_the_card() -> None:
    done = model("--model", "gtx1080-pcie3")
    assert done.returncode == 0, done.stderr
    rows = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    assert float(rows["copy_inside_gb_per_s"][0]) == pytest.approx(900, rel=0.01)
    assert float(rows["copy_inside_gb_per_s"][1]) == pytest.approx(121, rel=0.01)
    card, modelled, ratio = map(float, rows["prefetch_to_device_gb_per_s"])
    assert 30 < card < 50
    assert 8 < modelled < 12.3
    assert ratio == pytest.approx(modelled / card, abs=0.01)
    assert float(rows["advice_block_us"][0]) > 2
    assert float(rows["populate_block_us"][1]) > 0


def test_a_machine_beside_itself_is_the_same() -> None:
    done = model("--model", "h100-pcie5")
    assert done.returncode == 0, done.stderr
    ratios = [line.split()[-1] for line in done.stdout.splitlines()[3:]]
    assert len(ratios) == 6
    assert set(ratios) == {"1.00"}


def test_a_model_that_is_none_is_refused() -> None:
    done = model("--model", "none")
    assert done.returncode == 1
    assert "--model is 'none'; accepted: gb10, gh200" in done.stderr
