"""sim/lacks.md lists what CUDA and HIP document and the simulator lacks, and what that hides."""

from __future__ import annotations

import fnmatch
import re
import sys
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import CTYPES, ROOT, run_on

PAGE = (ROOT / "sim" / "lacks.md").read_text()
STUBS = ("cuda/driver_stubs.cpp", "cuda/runtime_stubs.cpp", "hip/hip_stubs.cpp")

CUDA = """
runtime, driver = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcuda.so.1")
engine = ctypes.CDLL("libuvmsim.so")
def ok(result): assert result == 0, result
def new(call, *arguments):
    out = pointer()
    ok(call(byref(out), *arguments))
    return out
ok(runtime.cudaSetDevice(0)); ok(runtime.cudaFree(None))
NON_BLOCKING, RELAXED = 1, 2
class Access(ctypes.Structure):
    _fields_ = [("address", pointer), ("size_bytes", size), ("access", ctypes.c_int)]
def failing_kernel():
    local = ctypes.create_string_buffer(64)
    touched = Access(ctypes.addressof(local), 64, 1)
    assert engine.uvmsim_kernel(0, None, byref(touched), size(1), ctypes.c_uint64(1000)) != 0
"""
HIP = """
runtime = ctypes.CDLL("libamdhip64.so.5")
assert runtime.hipSetDevice(0) == 0
"""

# Each probe succeeds while the simulator lacks the effect.
PROBES = {
    "work-after-the-call": """
block = new(runtime.cudaMallocHost, size(64))
ok(engine.uvmsim_kernel(0, None, None, size(0), ctypes.c_uint64(10**15)))
ok(runtime.cudaMemsetAsync(block, 7, size(64), None))
assert ctypes.string_at(block, 1) == bytes([7])
""",
    "sticky-errors": """
failing_kernel()
ok(runtime.cudaDeviceSynchronize())
new(runtime.cudaMalloc, size(64))
""",
    "errors-of-earlier-work": """
failing_kernel()
ok(runtime.cudaFree(None))
ok(runtime.cudaGetLastError())
""",
    "stream-attachment": """
stream, SINGLE = new(runtime.cudaStreamCreateWithFlags, NON_BLOCKING), 4
block = new(runtime.cudaMallocManaged, size(64), 1)
ok(runtime.cudaStreamAttachMemAsync(stream, block, size(0), SINGLE))
other = new(runtime.cudaStreamCreateWithFlags, NON_BLOCKING)
ok(runtime.cudaMemsetAsync(block, 7, size(64), other))
""",
    "static-runtimes": """
of_the_runtime, NOT_SUPPORTED = bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9"), 801
assert driver.cuGetExportTable(byref(pointer()), of_the_runtime) == NOT_SUPPORTED
""",
    "settings-of-devices": """
before, after, STACK_SIZE = size(), size(), 0
ok(runtime.cudaDeviceGetLimit(byref(before), STACK_SIZE))
ok(runtime.cudaDeviceSetLimit(STACK_SIZE, size(64 * before.value)))
ok(runtime.cudaDeviceGetLimit(byref(after), STACK_SIZE))
assert after.value == before.value
""",
    "pools-keep-memory": """
pool, THRESHOLD, RESERVED = new(runtime.cudaDeviceGetDefaultMemPool, 0), 4, 5
ok(runtime.cudaMemPoolSetAttribute(pool, THRESHOLD, byref(ctypes.c_uint64(2**40))))
ok(runtime.cudaFreeAsync(new(runtime.cudaMallocAsync, size(8 * MIB), None), None))
ok(runtime.cudaDeviceSynchronize())
reserved = ctypes.c_uint64(1)
ok(runtime.cudaMemPoolGetAttribute(pool, RESERVED, byref(reserved)))
assert reserved.value == 0
""",
    "allocations-in-graphs": """
stream = new(runtime.cudaStreamCreateWithFlags, NON_BLOCKING)
ok(runtime.cudaStreamBeginCapture(stream, RELAXED))
assert runtime.cudaMallocAsync(byref(pointer()), size(64), stream) != 0
""",
    "registered-pages": """
ok(runtime.cudaHostRegister(pointer(1 << 20), size(4096), 0))
""",
    "executable-graphs-end": """
stream = new(runtime.cudaStreamCreateWithFlags, NON_BLOCKING)
graph, executable = pointer(), pointer()
ok(runtime.cudaStreamBeginCapture(stream, RELAXED))
ok(runtime.cudaStreamEndCapture(stream, byref(graph)))
ok(runtime.cudaGraphInstantiate(byref(executable), graph, ctypes.c_ulonglong(0)))
ok(runtime.cudaDeviceReset())
ok(runtime.cudaGraphLaunch(executable, None))
""",
    "default-streams-of-contexts": """
ok(engine.uvmsim_kernel(0, None, None, size(0), ctypes.c_uint64(10**15)))
NOT_READY = 600
new(driver.cuCtxCreate_v4, None, 0, 0)
assert driver.cuStreamQuery(None) == NOT_READY
""",
    "modules-end-with-contexts": """
module = new(driver.cuModuleLoadData, b"code")
function = pointer()
ok(runtime.cudaDeviceReset())
ok(driver.cuModuleGetFunction(byref(function), module, b"f"))
""",
    "detached-streams": """
class Part(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("bytes", ctypes.c_char * 140)]
part, stream = Part(), pointer()
ok(driver.cuDeviceGetDevResource(0, byref(part), 1))
description = new(driver.cuDevResourceGenerateDesc, byref(part), 1)
context = new(driver.cuGreenCtxCreate, description, 0, 1)
ok(driver.cuGreenCtxStreamCreate(byref(stream), context, 1, 0))
ok(driver.cuGreenCtxDestroy(context))
assert driver.cuStreamQuery(stream) == driver.cuStreamDestroy_v2(stream) == 400
""",
    "hip-resets": HIP
    + """
block = pointer()
assert runtime.hipMalloc(byref(block), size(64)) == 0 and runtime.hipDeviceReset() == 0
assert runtime.hipFree(block) != 0
""",
}


def rows(title: str) -> list[list[str]]:
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def stubs() -> set[str]:
    built = find_libraries().folder.parent / "sim"
    found: set[str] = set()
    for file in STUBS:
        found.update(re.findall(r"^STUB\((\w+)\)$", (built / file).read_text(), re.MULTILINE))
    return found


def patterns() -> list[str]:
    return [pattern for row in rows("Calls") for pattern in re.findall(r"`([^`]+)`", row[1])]


def test_every_effect_has_a_probe() -> None:
    assert [row[0].strip("`") for row in rows("Effects")] == list(PROBES)


def test_every_line_says_what_it_hides() -> None:
    for row in rows("Effects"):
        assert len(row) == 4, row
        assert all(len(cell.split()) > 2 for cell in row[2:]), row
    for row in rows("Calls"):
        assert len(row) == 3, row
        assert len(row[2].split()) > 2, row


@pytest.mark.parametrize("effect", list(PROBES))
def test_the_simulator_lacks_it(effect: str, tmp_path: Path) -> None:
    text = PROBES[effect]
    is_hip = text.startswith(HIP)
    command = [sys.executable, "-c", CTYPES + ("" if is_hip else CUDA) + text]
    run_on(Machine(hip=is_hip), tmp_path)(*command, UVMALLOC_CUDA="0")


def test_every_call_without_code_is_in_the_table() -> None:
    known = patterns()
    missing = {
        name for name in stubs() if not any(fnmatch.fnmatchcase(name, each) for each in known)
    }
    assert sorted(missing) == []


def test_every_pattern_names_a_call_without_code() -> None:
    names = stubs()
    unused = [each for each in patterns() if not fnmatch.filter(names, each)]
    assert unused == []
