"""Allocation calls of CUDA and of HIP, served by libuvmalloc_preload.so: what holds for both.

The programs run on the simulated device. Its counters tell how many allocations reached the
driver, and the report tells how many were served. `runtime.Malloc` is cudaMalloc or hipMalloc.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import Program, in_python, run_on

LIBRARIES = {"cuda": "libcudart.so.13", "hip": "libamdhip64.so.7"}
PRELUDE = """
class Runtime:
    def __init__(self, library, vendor):
        self.library, self.vendor = ctypes.CDLL(library), vendor
    def __getattr__(self, name):
        return getattr(self.library, self.vendor + name)
runtime = Runtime(LIBRARY, VENDOR)
if VENDOR == "cuda":
    driver = ctypes.CDLL("libcuda.so.1")
    address_range = driver.cuMemGetAddressRange_v2
else:
    address_range = runtime.MemGetAddressRange
assert runtime.SetDevice(0) == 0 and runtime.Free(None) == 0
"""

both = pytest.mark.parametrize("vendor", LIBRARIES)


@pytest.fixture
def served(tmp_path: Path, vendor: str) -> Program:
    return run_on(Machine(hip=vendor == "hip"), tmp_path)


@pytest.fixture
def python(served: Program, vendor: str) -> Program:
    names = f"VENDOR, LIBRARY = {vendor!r}, {LIBRARIES[vendor]!r}\n"
    return in_python(served, names + PRELUDE)


@both
def test_without_the_variable_every_call_is_the_vendors(python: Program) -> None:
    text = """
for i in range(5):
    status, block = allocate(runtime.Malloc, size(MIB))
    assert status == 0 and runtime.Free(block) == 0
"""
    run = python(text, UVMALLOC_CUDA="0")
    assert (run.served, run.reached, run.stderr) == (0, 5, "")
    run = python(text)
    assert (run.served, run.reached, run.stderr) == (5, 0, "")


@pytest.mark.parametrize(
    ("vendor", "allocating", "freeing"),
    [
        ("cuda", "runtime.Malloc, size(3 * MIB)", "runtime.Free(block)"),
        ("cuda", "runtime.MallocHost, size(3 * MIB)", "runtime.FreeHost(block)"),
        ("cuda", "runtime.HostAlloc, size(3 * MIB), 0", "runtime.FreeHost(block)"),
        ("cuda", "runtime.MallocAsync, size(3 * MIB), None", "runtime.FreeAsync(block, None)"),
        ("cuda", "driver.cuMemAlloc_v2, size(3 * MIB)", "driver.cuMemFree_v2(block)"),
        ("cuda", "runtime.MallocManaged, size(3 * MIB), 1", "runtime.Free(block)"),
        ("cuda", "driver.cuMemAllocManaged, size(3 * MIB), 1", "driver.cuMemFree_v2(block)"),
        ("cuda", "driver.cuMemAllocHost_v2, size(3 * MIB)", "driver.cuMemFreeHost(block)"),
        ("cuda", "driver.cuMemHostAlloc, size(3 * MIB), 0", "driver.cuMemFreeHost(block)"),
        ("cuda", "driver.cuMemAllocAsync, size(3 * MIB), None", "driver.cuMemFreeAsync(block, 0)"),
        # The program frees with the other interface, or with another kind of call.
        ("cuda", "runtime.Malloc, size(3 * MIB)", "driver.cuMemFree_v2(block)"),
        ("cuda", "runtime.Malloc, size(3 * MIB)", "runtime.FreeAsync(block, None)"),
        ("cuda", "driver.cuMemAllocAsync, size(3 * MIB), None", "runtime.Free(block)"),
        ("cuda", "runtime.MallocHost, size(3 * MIB)", "driver.cuMemFreeHost(block)"),
        ("hip", "runtime.Malloc, size(3 * MIB)", "runtime.Free(block)"),
        ("hip", "runtime.MallocManaged, size(3 * MIB), 1", "runtime.Free(block)"),
        ("hip", "runtime.HostMalloc, size(3 * MIB), 0", "runtime.HostFree(block)"),
        ("hip", "runtime.HostAlloc, size(3 * MIB), 0", "runtime.FreeHost(block)"),
        ("hip", "runtime.MallocHost, size(3 * MIB)", "runtime.HostFree(block)"),
        ("hip", "runtime.MemAllocHost, size(3 * MIB)", "runtime.HostFree(block)"),
        ("hip", "runtime.MallocAsync, size(3 * MIB), None", "runtime.FreeAsync(block, None)"),
        ("hip", "runtime.Malloc, size(3 * MIB)", "runtime.FreeAsync(block, None)"),
        ("hip", "runtime.MallocAsync, size(3 * MIB), None", "runtime.Free(block)"),
    ],
)
def test_each_call_is_served(python: Program, allocating: str, freeing: str) -> None:
    run = python(f"""
for i in range(20):
    status, block = allocate({allocating})
    assert status == 0 and block.value % 512 == 0
    assert {freeing} == 0
print(i)
""")
    assert (run.stdout, run.served, run.reached) == ("19\n", 20, 0)


@both
def test_what_is_not_ours_is_the_vendors(python: Program) -> None:
    run = python("""
print("null", runtime.Free(None))
print("foreign", runtime.Free(pointer(0x10000)))
status, block = allocate(runtime.Malloc, size(MIB))
print("interior", runtime.Free(pointer(block.value + 512)))
print("twice", runtime.Free(block), runtime.Free(block))
print("nothing", *allocate(runtime.Malloc, size(0)))
print("too much", allocate(runtime.Malloc, size(1 << 45))[0], runtime.GetLastError())
""")
    assert run.stdout.splitlines() == [
        "null 0",
        "foreign 1",
        "interior 1",
        "twice 0 1",
        "nothing 0 c_void_p(None)",
        "too much 2 2",
    ]
    assert run.served == 1


@both
def test_one_line_says_that_calls_are_served(python: Program, vendor: str) -> None:
    run = python("allocate(runtime.Malloc, size(MIB))", UVMALLOC_STARTUP_LINE="1")
    [line] = run.stderr.splitlines()
    assert line.startswith(f"uvmalloc: serves {vendor.upper()}'s allocation calls: 1 x ")
    assert "managed memory, policy auto, budget " in line
    run = python("runtime.GetDeviceCount(byref(pointer()))", UVMALLOC_STARTUP_LINE="1")
    assert run.stderr == "", "no allocation call was made"
    allocation = "allocate(runtime.Malloc, size(MIB))"
    run = python(allocation, UVMALLOC_STARTUP_LINE="1", UVMALLOC_EXCLUDE="<2MiB")
    assert run.stderr == "", "no allocation call was served"
    run = python(
        "allocate(runtime.Malloc, size(MIB))", UVMALLOC_STARTUP_LINE="1", UVMALLOC_LOG="error"
    )
    assert run.stderr == "", "the line is no error"


@both
def test_the_range_of_an_address_is_its_blocks(python: Program) -> None:
    run = python("""
status, block = allocate(runtime.Malloc, size(5000))
base, length = pointer(), size()
inside = pointer(block.value + 4999)
assert address_range(byref(base), byref(length), inside) == 0
print(base.value == block.value, length.value)
""")
    assert run.stdout == "True 5000\n"


@pytest.mark.parametrize(
    ("vendor", "allocating", "name"),
    [
        ("cuda", "runtime.MallocAsync, size(MIB), stream", "cudaMallocAsync"),
        ("cuda", "driver.cuMemAllocAsync, size(MIB), stream", "cuMemAllocAsync"),
        ("cuda", "runtime.MallocFromPoolAsync, size(MIB), pool, stream", "cudaMallocFromPoolAsync"),
        ("hip", "runtime.MallocAsync, size(MIB), stream", "hipMallocAsync"),
    ],
)
def test_memory_in_the_order_of_a_capture_is_the_graphs(
    python: Program, allocating: str, name: str
) -> None:
    run = python(f"""
stream, pool, graph = pointer(), pointer(), pointer()
assert runtime.StreamCreate(byref(stream)) == 0
assert runtime.DeviceGetDefaultMemPool(byref(pool), 0) == 0
assert runtime.StreamBeginCapture(stream, 0) == 0
status, block = allocate({allocating})
runtime.StreamEndCapture(stream, byref(graph))
print(status)
status, block = allocate({allocating})
print(status)
""")
    not_supported = 801  # from the simulated device
    assert run.stdout == f"{not_supported}\n0\n"
    assert run.report["cuda_calls"][name]["left"] == 1
    assert run.served == 1


@pytest.mark.parametrize(("vendor", "version"), [("cuda", 13), ("hip", 5), ("hip", 6), ("hip", 7)])
def test_a_linked_program_is_served(
    served: Program, tmp_path: Path, vendor: str, version: int
) -> None:
    source, linked = tmp_path / "linked.c", tmp_path / "linked"
    source.write_text(
        """
int cudaMalloc(void** out, unsigned long bytes);
int cudaFree(void* address);
int main(void) {
  for (int i = 0; i < 4; ++i) {
    void* block = 0;
    if (cudaMalloc(&block, 1 << 20) != 0 || cudaFree(block) != 0) return 1;
  }
  return 0;
}
""".replace("cuda", vendor)
    )
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test compiles a program"
    libraries = find_libraries()
    folder = libraries.hip_stand_ins if vendor == "hip" else libraries.stand_ins
    runtime = folder / f"{LIBRARIES[vendor].rpartition('.')[0]}.{version}"
    command = [compiler, "-Wl,--allow-shlib-undefined", "-o", linked, source, runtime]
    subprocess.run(command, check=True)
    run = served(linked)
    assert (run.served, run.reached) == (4, 0)
