"""AMD's own bindings for Python, unmodified, allocate on the stand-in for HIP's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uvmalloc._cli.environment import Machine, on_simulated_device, without_settings
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import run_on

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import ctypes, json
from hip import hip

def check(answer):
    error, *values = answer
    assert error == hip.hipError_t.hipSuccess, error
    return values[0] if len(values) == 1 else values

found = {"devices": check(hip.hipGetDeviceCount()), "version": check(hip.hipRuntimeGetVersion())}
managed = check(hip.hipMallocManaged(1 << 20, hip.hipMemAttachGlobal))
ctypes.memset(int(managed), 7, 1 << 20)
advice = hip.hipMemoryAdvise.hipMemAdviseSetPreferredLocation
check(hip.hipMemAdvise(managed, 1 << 20, advice, 0))
check(hip.hipMemPrefetchAsync(managed, 1 << 20, 0, None))
device = check(hip.hipMalloc(1 << 20))
host = check(hip.hipHostMalloc(1 << 20, 0))
kind = hip.hipMemcpyKind
check(hip.hipMemcpy(device, managed, 1 << 20, kind.hipMemcpyDeviceToDevice))
check(hip.hipMemcpy(host, device, 1 << 20, kind.hipMemcpyDeviceToHost))
found["byte"] = ctypes.string_at(int(host) + (1 << 20) - 1, 1)[0]
free_bytes, total_bytes = check(hip.hipMemGetInfo())
found["total_mib"] = total_bytes >> 20
found["used_mib"] = (total_bytes - free_bytes) >> 20
check(hip.hipFree(device)), check(hip.hipFree(managed)), check(hip.hipHostFree(host))
error, = hip.hipFree(managed)
found["second_free"] = error.name
print(json.dumps(found))
"""


# The same calls, with the names of CUDA's bindings.
INTEROP_PROGRAM = """
import ctypes, json
from cuda.bindings import driver, runtime

def check(answer):
    error, *values = answer
    assert int(error) == 0, error
    return values[0] if len(values) == 1 else values

check(driver.cuInit(0))
managed = check(driver.cuMemAllocManaged(1 << 20, 1))
ctypes.memset(int(managed), 7, 1 << 20)
device = check(runtime.cudaMalloc(1 << 20))
host = ctypes.create_string_buffer(1 << 20)
kind = runtime.cudaMemcpyKind
check(runtime.cudaMemcpy(device, managed, 1 << 20, kind.cudaMemcpyDeviceToDevice))
check(runtime.cudaMemcpy(host, device, 1 << 20, kind.cudaMemcpyDeviceToHost))
total_mib = check(driver.cuMemGetInfo())[1] >> 20
check(driver.cuMemFree(managed)), check(runtime.cudaFree(device))
print(json.dumps({"byte": host.raw[-1], "total_mib": total_mib}))
"""


@pytest.fixture(scope="module")
def bindings() -> Path:
    folder = Path((ROOT / "build" / "hip-python").read_text().strip())
    assert (folder / "hip").is_dir(), "scripts/setup installs them"
    return folder


def run(program: str, bindings: Path, machine: Machine) -> dict[str, Any]:
    environment = on_simulated_device(without_settings(os.environ), find_libraries(), machine, None)
    environment["PYTHONPATH"] = str(bindings)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "not implemented" not in done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_memory_of_every_kind_is_allocated_copied_and_freed(bindings: Path) -> None:
    found = run(PROGRAM, bindings, Machine(capacity_bytes=256 << 20, hip=True))
    assert found.pop("second_free") == "hipErrorInvalidValue"
    used_mib = found.pop("used_mib")
    assert 3 <= used_mib <= 32, "a context, and two blocks of 2 MiB chunks"
    assert found == {"devices": 1, "version": 71526333, "byte": 7, "total_mib": 256}


def test_a_machine_without_devices_says_so(bindings: Path) -> None:
    program = """
import json
from hip import hip
error, count = hip.hipGetDeviceCount()
print(json.dumps({"error": error.name, "count": count}))
"""
    found = run(program, bindings, Machine(devices=0, hip=True))
    assert found == {"error": "hipErrorNoDevice", "count": 0}


# -S hides the environment's own packages: they hold CUDA's bindings, which have the same names.
@pytest.mark.parametrize(("program", "allocations"), [(PROGRAM, 3), (INTEROP_PROGRAM, 2)])
def test_each_program_is_served_under_the_preload(
    tmp_path: Path, bindings: Path, program: str, allocations: int
) -> None:
    served = run_on(Machine(capacity_bytes=256 << 20, hip=True), tmp_path)
    run = served(sys.executable, "-S", "-c", program, PYTHONPATH=str(bindings))
    found = json.loads(run.stdout)
    assert (found["byte"], found["total_mib"]) == (7, 256)
    assert (run.served, run.reached, run.stderr) == (allocations, 0, "")
    (tmp_path / "plain").mkdir()
    alone = run_on(Machine(capacity_bytes=256 << 20, hip=True), tmp_path / "plain")
    plain = alone(sys.executable, "-S", "-c", program, PYTHONPATH=str(bindings), UVMALLOC_CUDA="0")
    assert (json.loads(plain.stdout)["byte"], plain.served) == (7, 0)
