"""CUDA's allocation calls in programs without torch, which uvmalloc serves if the program
asks for it.

The programs run on the simulated device. Its counters tell how many allocations reached the
driver, and the report tells how many were served.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from uvmalloc._cli.environment import Machine
from uvmalloc._cli.report import show_report

from tests.preload.conftest import ROOT, Program, in_python, listed_calls, run_on

PRELUDE = """
runtime, driver = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcuda.so.1")
def free_of(function, address):
    return function(pointer(address) if isinstance(address, int) else address)
assert runtime.cudaSetDevice(0) == 0 and runtime.cudaFree(None) == 0
"""


@pytest.fixture
def python(program: Program) -> Program:
    return in_python(program, PRELUDE)


def test_rows_of_pitched_memory_are_aligned(python: Program) -> None:
    run = python("""
class Pitched(ctypes.Structure):
    _fields_ = [("address", pointer), ("pitch", size), ("width", size), ("height", size)]
class Extent(ctypes.Structure):
    _fields_ = [("width", size), ("height", size), ("depth", size)]
block, pitch = pointer(), size()
assert runtime.cudaMallocPitch(byref(block), byref(pitch), size(1000), size(7)) == 0
print(pitch.value, runtime.cudaFree(block))
assert driver.cuMemAllocPitch_v2(byref(block), byref(pitch), size(512), size(3), 4) == 0
print(pitch.value, driver.cuMemFree_v2(block))
cube = Pitched()
runtime.cudaMalloc3D.argtypes = [ctypes.POINTER(Pitched), Extent]
assert runtime.cudaMalloc3D(byref(cube), Extent(100, 20, 3)) == 0
print(cube.pitch, cube.width, cube.height, runtime.cudaFree(pointer(cube.address)))
""")
    assert (run.stdout, run.served, run.reached) == ("1024 0\n512 0\n512 100 20 0\n", 3, 0)


def test_a_block_is_used_again_when_the_program_has_waited_for_the_device(python: Program) -> None:
    run = python("""
status, first = allocate(runtime.cudaMalloc, size(4 * MIB))
assert runtime.cudaFree(first) == 0
status, second = allocate(runtime.cudaMalloc, size(4 * MIB))
assert second.value != first.value, "work on the first may not be over"
assert runtime.cudaDeviceSynchronize() == 0
status, third = allocate(runtime.cudaMalloc, size(4 * MIB))
print(third.value == first.value)
""")
    assert run.stdout == "True\n"


def test_a_default_pool_is_served_and_another_one_is_cudas(python: Program) -> None:
    run = python("""
pool = pointer()
assert driver.cuDeviceGetDefaultMemPool(byref(pool), 0) == 0
status, block = allocate(driver.cuMemAllocFromPoolAsync, size(MIB), pool, None)
print(status, driver.cuMemFreeAsync(block, None))
status, block = allocate(runtime.cudaMallocFromPoolAsync, size(MIB), pool, None)
print(status, runtime.cudaFreeAsync(block, None))
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("rest", ctypes.c_uint64 * 16)]
own, properties = pointer(), Properties(1, 0, Location(1, 0))
assert runtime.cudaMemPoolCreate(byref(own), byref(properties)) == 0
status, block = allocate(driver.cuMemAllocFromPoolAsync, size(MIB), own, None)
print(status, driver.cuMemFreeAsync(block, None))
""")
    assert (run.stdout, run.served, run.reached) == ("0 0\n0 0\n0 0\n", 2, 1)


def test_many_freed_blocks_are_waited_for_once(python: Program) -> None:
    run = python("""
blocks = set()
for i in range(1000):
    status, block = allocate(runtime.cudaMalloc, size(64 << 10))
    blocks.add(block.value)
    assert runtime.cudaFree(block) == 0
print(len(blocks) <= 257)
""")
    assert (run.stdout, run.served, run.reached) == ("True\n", 1000, 0)


def test_managed_memory_for_the_host_is_cudas(python: Program) -> None:
    run = python("""
status, managed = allocate(runtime.cudaMallocManaged, size(MIB), 2)
print(status, runtime.cudaFree(managed), driver.cuMemFree_v2(None))
""")
    assert (run.stdout, run.served) == ("0 0 0\n", 0)


def test_advice_on_managed_memory_ends_with_its_block(python: Program) -> None:
    """The next block in these pages belongs to another owner."""
    run = python("""
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
HOST, DEVICE = Location(2, 0), Location(1, 0)
READ_MOSTLY, PREFERRED, PREFERRED_LOCATION = 1, 3, 2
def attribute(number, block):
    answer = ctypes.c_int(-9)
    assert driver.cuMemRangeGetAttribute(byref(answer), size(4), number, block, size(4 * MIB)) == 0
    return answer.value
status, block = allocate(runtime.cudaMallocManaged, size(4 * MIB), 1)
print(attribute(READ_MOSTLY, block), driver.cuStreamAttachMemAsync(None, block, size(0), 1))
ctypes.memset(block.value, 7, 4 * MIB)
assert runtime.cudaMemAdvise(block, size(4 * MIB), READ_MOSTLY, HOST) == 0
assert runtime.cudaMemAdvise(block, size(4 * MIB), PREFERRED, HOST) == 0
print(attribute(READ_MOSTLY, block), attribute(PREFERRED_LOCATION, block))
assert runtime.cudaFree(block) == 0 and runtime.cudaDeviceSynchronize() == 0
status, again = allocate(runtime.cudaMalloc, size(4 * MIB))
print(again.value == block.value)
print(attribute(READ_MOSTLY, again), attribute(PREFERRED_LOCATION, again))
""")
    assert run.stdout.splitlines() == ["0 0", "1 -1", "True", "0 0"]


@pytest.mark.parametrize(("wanted", "expected"), [("managed", "3 3 1\n"), ("device", "2 3 0\n")])
def test_pointer_attributes_say_what_is_wanted(python: Program, wanted: str, expected: str) -> None:
    run = python(
        """
def kind(block):
    answer = (ctypes.c_int * 64)()
    assert runtime.cudaPointerGetAttributes(answer, block) == 0
    return answer[0]
status, block = allocate(runtime.cudaMalloc, size(MIB))
status, managed = allocate(runtime.cudaMallocManaged, size(MIB), 1)
is_managed = ctypes.c_int()
assert driver.cuPointerGetAttribute(byref(is_managed), 8, block) == 0
print(kind(block), kind(managed), is_managed.value)
""",
        UVMALLOC_POINTER_TYPE=wanted,
    )
    assert run.stdout == expected


def test_the_report_counts_served_and_passed_calls(python: Program) -> None:
    run = python(
        """
for bytes in (MIB, MIB, 4 * MIB, 0):
    status, block = allocate(runtime.cudaMalloc, size(bytes))
    assert status == 0 and runtime.cudaFree(block) == 0
allocate(runtime.cudaMalloc, size(1 << 45))
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("rest", ctypes.c_uint64 * 4)]
tiles = (ctypes.c_uint64 * 4)(0, 1 << 16)
handle, properties = ctypes.c_uint64(), Properties(1, 0, Location(1, 0), tiles)
assert driver.cuMemCreate(byref(handle), size(2 * MIB), byref(properties), ctypes.c_uint64(0)) == 0
""",
        UVMALLOC_EXCLUDE=">3MiB",
    )
    calls = run.report["cuda_calls"]
    others = {"no_memory": 0, "beyond_limit": 0}
    assert calls["cudaMalloc"] == {"served": 2, "excluded": 2, "left": 1, **others}
    assert calls["cuMemCreate"] == {"served": 0, "excluded": 0, "left": 1, **others}
    assert run.report["static_cuda_runtimes"] == []
    shown = Console(width=200, record=True, markup=False, file=io.StringIO())
    show_report(run.report, shown)
    text = shown.file.getvalue()
    assert "CUDA calls served" in text and "cuMemCreate 1" in text


@pytest.mark.parametrize(
    ("exclude", "served"),
    [("", 3), ("<1MiB", 2), (">1MiB", 2), ("<1MiB,>1MiB", 1), ("libffi", 0), ("none,libno", 3)],
)
def test_calls_are_excluded_by_size_and_by_library(
    python: Program, exclude: str, served: int
) -> None:
    text = """
for bytes in (MIB // 2, MIB, 2 * MIB):
    status, block = allocate(runtime.cudaMalloc, size(bytes))
    assert status == 0 and runtime.cudaFree(block) == 0
"""
    run = python(text, UVMALLOC_EXCLUDE=exclude)
    assert (run.served, run.reached, run.stderr) == (served, 3 - served, "")


def test_an_exclusion_that_is_not_understood_is_named(python: Program) -> None:
    run = python("allocate(runtime.cudaMalloc, size(MIB))", UVMALLOC_EXCLUDE="<1MiB,nccl")
    assert run.stderr == (
        "uvmalloc: UVMALLOC_EXCLUDE has 'nccl', which is not understood; accepted: <SIZE, "
        ">SIZE, libNAME, libNAME.so+0xOFFSET and, as the first, none\n"
    )


LOOKUPS = {
    "cuGetProcAddress_v2": """
found, status = pointer(), ctypes.c_int()
assert driver.cuGetProcAddress_v2(NAME, byref(found), 13000, ctypes.c_uint64(0), byref(status)) == 0
""",
    "cuGetProcAddress": """
found = pointer()
assert driver.cuGetProcAddress(NAME, byref(found), 12000, ctypes.c_uint64(0)) == 0
""",
    "cudaGetDriverEntryPointByVersion": """
found, status = pointer(), ctypes.c_int()
look_up = runtime.cudaGetDriverEntryPointByVersion
assert look_up(NAME, byref(found), 13000, ctypes.c_ulonglong(0), byref(status)) == 0
""",
    "dlsym": """
libc = ctypes.CDLL(None)
libc.dlsym.restype = pointer
found = pointer(libc.dlsym(pointer(driver._handle), b"cuMemAlloc_v2"))
""",
}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_each_way_to_look_a_function_up_gives_ours(python: Program, lookup: str) -> None:
    run = python(
        'NAME = b"cuMemAlloc"'
        + LOOKUPS[lookup]
        + """
function = ctypes.CFUNCTYPE(ctypes.c_int, pointer, size)(found.value)
for i in range(3):
    block = pointer()
    assert function(ctypes.addressof(block), MIB) == 0
    assert driver.cuMemFree_v2(block) == 0
"""
    )
    assert (run.served, run.reached) == (3, 0)


def test_a_look_up_by_version_gives_ours(python: Program) -> None:
    run = python("""
libc = ctypes.CDLL(None)
libc.dlvsym.restype = pointer
def look_up(name, version):
    return libc.dlvsym(pointer(runtime._handle), name, version)
function = ctypes.CFUNCTYPE(ctypes.c_int, pointer, size)(look_up(b"cudaMalloc", b"libcudart.so.13"))
block = pointer()
assert function(ctypes.addressof(block), MIB) == 0 and runtime.cudaFree(block) == 0
print(look_up(b"cudaMalloc", b"libcudart.so.99"), look_up(b"cudaNothing", b"libcudart.so.13"))
""")
    assert (run.stdout, run.served, run.reached) == ("None None\n", 1, 0)


def test_a_child_of_fork_is_served_when_its_parent_has_not_used_the_device(
    program: Program,
) -> None:
    run = program(
        sys.executable,
        "-c",
        """
import os
if os.fork() == 0:
    import ctypes
    runtime = ctypes.CDLL("libcudart.so.13")
    block = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(1 << 20)) == 0
    assert runtime.cudaFree(block) == 0
else:
    assert os.wait()[1] == 0
""",
    )
    assert (run.served, run.reached) == (1, 0)


def test_a_child_of_fork_leaves_its_parents_memory_alone(python: Program) -> None:
    run = python("""
status, block = allocate(runtime.cudaMalloc, size(MIB))
if os.fork() == 0:
    os._exit(runtime.cudaFree(block) == 3 and allocate(runtime.cudaMalloc, size(MIB))[0] == 3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
print(runtime.cudaFree(block))
""")
    assert run.stdout == "0\n"


def test_every_interposed_call_is_declared_by_cuda_or_is_a_variant_of_one() -> None:
    names = listed_calls("cu")
    assert len(names) == len(set(names)) > 30
    folder = Path((ROOT / "build" / "newest-cuda").read_text().strip()) / "nvidia/cu13/include"
    declared = (folder / "cuda.h").read_text() + (folder / "cuda_runtime_api.h").read_text()
    missing = [name for name in names if not re.search(rf"\b{name.split('_ptsz')[0]}\b", declared)]
    assert missing == []


@pytest.mark.parametrize(
    ("interface", "symbols"), [("CUDA_RUNTIME", "cudart"), ("CUDA_DRIVER", "cuda")]
)
def test_the_real_library_exports_every_intercepted_call_of_it(
    interface: str, symbols: str
) -> None:
    exported = set((ROOT / "sim" / "cuda" / f"{symbols}_symbols.txt").read_text().split())
    assert set(listed_calls("cu", interface)) - exported == set()


def test_a_program_that_looks_up_a_launch_gets_ours(python: Program) -> None:
    run = python("""
libc = ctypes.CDLL(None)
libc.dladdr.argtypes = [pointer, pointer]
def file_of(address):
    found = (pointer * 4)()
    assert libc.dladdr(address, found) != 0
    return os.path.basename(ctypes.cast(found[0], ctypes.c_char_p).value.decode())
for name in ("cudaLaunchKernel", "cudaGraphInstantiate", "cudaGraphLaunch"):
    print(file_of(ctypes.cast(getattr(runtime, name), pointer)))
for name in (b"cuLaunchKernel", b"cuLaunchKernelEx", b"cuGraphLaunch", b"cuGraphInstantiate"):
    found = pointer()
    assert runtime.cudaGetDriverEntryPointByVersion(name, byref(found), 13000, 0, None) == 0
    print(file_of(found))
print(file_of(ctypes.cast(driver.cuLaunchKernel, pointer)))
""")
    assert {name.split(".so")[0] for name in run.stdout.split()} == {"libuvmalloc_preload"}


STREAM = """
stream = pointer()
assert runtime.cudaStreamCreate(byref(stream)) == 0
"""


def test_a_request_beyond_the_budget_is_refused_as_by_cuda(python: Program) -> None:
    run = python(
        """
calls = (runtime.cudaMalloc, runtime.cudaMallocHost, runtime.cudaMallocManaged,
         driver.cuMemAlloc_v2)
for call in calls:
    print(allocate(call, size(96 * MIB), 1)[0], runtime.cudaGetLastError())
pitch = size()
print(runtime.cudaMallocPitch(byref(pointer()), byref(pitch), size(32 * MIB), size(3)))
print(allocate(runtime.cudaMalloc, size(16 * MIB))[0])
""",
        UVMALLOC_BUDGET="64MiB",
    )
    assert run.stdout == "2 2\n2 2\n2 2\n2 0\n2\n0\n"
    assert (run.served, run.reached) == (1, 0)
    assert run.report["cuda_calls"]["cudaMalloc"]["beyond_limit"] == 1


def test_stream_ordered_memory_is_on_the_device_of_its_stream(tmp_path: Path) -> None:
    run = in_python(run_on(Machine(devices=2), tmp_path), PRELUDE)("""
assert runtime.cudaSetDevice(1) == 0
stream = pointer()
assert runtime.cudaStreamCreate(byref(stream)) == 0
assert runtime.cudaSetDevice(0) == 0
def device_of(block):
    answer = (ctypes.c_int * 64)()
    assert runtime.cudaPointerGetAttributes(answer, block) == 0
    return answer[1]
status, ours = allocate(runtime.cudaMallocAsync, size(MIB), stream)
status, of_driver = allocate(driver.cuMemAllocAsync, size(MIB), stream)
status, plain = allocate(runtime.cudaMallocAsync, size(MIB), None)
print(*map(device_of, (ours, of_driver, plain)))
print(runtime.cudaFreeAsync(ours, stream), runtime.cudaStreamSynchronize(stream))
""")
    assert run.stdout == "1 1 0\n0 0\n"
    assert run.served == 3


def test_the_pool_that_a_program_has_chosen_is_cudas(python: Program) -> None:
    run = python(f"""{STREAM}
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("rest", ctypes.c_uint64 * 12)]
pool, default = pointer(), pointer()
properties = Properties(1, 0, Location(1, 0))
assert runtime.cudaMemPoolCreate(byref(pool), byref(properties)) == 0
assert runtime.cudaDeviceGetDefaultMemPool(byref(default), 0) == 0
assert runtime.cudaDeviceSetMemPool(0, pool) == 0
print(allocate(runtime.cudaMallocAsync, size(MIB), stream)[0])
assert runtime.cudaDeviceSetMemPool(0, default) == 0
print(allocate(runtime.cudaMallocAsync, size(MIB), stream)[0])
""")
    assert run.stdout == "0\n0\n"
    assert run.report["cuda_calls"]["cudaMallocAsync"]["left"] == 1
    assert run.served == 1


def test_attributes_of_an_address_are_those_of_its_block(python: Program) -> None:
    run = python("""
def attribute_of(attribute, block, offset):
    answer, address = ctypes.c_uint64(), pointer(block.value + offset)
    assert driver.cuPointerGetAttribute(byref(answer), attribute, address) == 0
    return answer.value
RANGE_START, RANGE_SIZE, MEMORY_TYPE, IS_MANAGED = 11, 12, 2, 8
for call, arguments in ((runtime.cudaMalloc, ()), (runtime.cudaHostAlloc, (2,))):
    status, block = allocate(call, size(100_000), *arguments)
    print(attribute_of(RANGE_START, block, 50_000) - block.value,
          attribute_of(RANGE_SIZE, block, 50_000),
          attribute_of(MEMORY_TYPE, block, 0), attribute_of(IS_MANAGED, block, 0))
    both = (ctypes.c_int * 2)(RANGE_SIZE, RANGE_START)
    answers = (ctypes.c_uint64(), ctypes.c_uint64())
    places = (pointer * 2)(*map(ctypes.addressof, answers))
    assert driver.cuPointerGetAttributes(2, both, places, block) == 0
    print(answers[0].value, answers[1].value - block.value)
""")
    assert run.stdout == "0 100000 2 1\n100000 0\n0 100000 1 0\n100000 0\n"


def test_pinned_memory_is_pinned_memory_to_programs(python: Program) -> None:
    run = python("""
status, block = allocate(runtime.cudaHostAlloc, size(5000), 2)
answer = (ctypes.c_int * 64)()
on_device, flags = pointer(), ctypes.c_uint()
assert runtime.cudaPointerGetAttributes(answer, block) == 0
assert runtime.cudaHostGetDevicePointer(byref(on_device), block, 0) == 0
assert runtime.cudaHostGetFlags(byref(flags), block) == 0
print(answer[0], on_device.value == block.value, flags.value)
""")
    mapped_and_portable = 3
    assert run.stdout == f"1 True {mapped_and_portable}\n"


def test_a_refused_free_sets_the_last_error_and_frees_nothing(python: Program) -> None:
    run = python("""
status, block = allocate(runtime.cudaMalloc, size(MIB))
status, pinned = allocate(runtime.cudaMallocHost, size(MIB))
def last(status):
    return status, runtime.cudaGetLastError()
print("pinned", last(runtime.cudaFree(pinned)), last(runtime.cudaFreeHost(pinned)))
print("device", last(runtime.cudaFreeHost(block)), last(runtime.cudaFree(block)))
print("twice", last(runtime.cudaFree(block)), last(runtime.cudaFreeAsync(block, None)))
print("driver", driver.cuMemFree_v2(block), driver.cuMemFreeHost(pinned))
""")
    assert run.stdout.splitlines() == [
        "pinned (1, 1) (0, 0)",
        "device (1, 1) (0, 0)",
        "twice (1, 1) (1, 1)",
        "driver 1 1",
    ]


def test_a_second_free_at_the_beginning_of_a_span_frees_no_other_block(python: Program) -> None:
    """The pages may have left the pools by then, and the driver would free the whole span."""
    run = python(
        """
WHOLE = 200 * MIB
first = allocate(runtime.cudaMalloc, size(WHOLE))[1]
other = allocate(runtime.cudaMalloc, size(MIB))[1]
assert runtime.cudaMemset(other, 7, size(MIB)) == 0
assert runtime.cudaFree(first) == 0 and runtime.cudaDeviceSynchronize() == 0
# There is room for it once whole free pages have left the pools.
print(allocate(runtime.cudaMallocHost, size(WHOLE))[0])
frees = runtime.cudaFree, driver.cuMemFree_v2, lambda block: runtime.cudaFreeAsync(block, None)
print(*(free(first) for free in frees))
back = ctypes.create_string_buffer(4)
print(runtime.cudaMemcpy(back, other, size(4), 2), back.raw)
""",
        UVMALLOC_BUDGET="256MiB",
    )
    assert run.stdout == "0\n1 1 1\n0 b'\\x07\\x07\\x07\\x07'\n"
