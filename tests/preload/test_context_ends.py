"""Device resets and ends of contexts, in programs that uvmalloc serves."""

from __future__ import annotations

import pytest
from uvmalloc._cli.environment import Machine

from tests.preload.conftest import Program, in_python, run_on

PRELUDE = """
runtime, driver = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcuda.so.1")
def malloc(count=MIB, call=runtime.cudaMalloc):
    status, block = allocate(call, size(count))
    assert status == 0
    return block
def free_memory():
    free, total = size(), size()
    assert runtime.cudaMemGetInfo(byref(free), byref(total)) == 0
    return free.value
def works(block, text=b"values"):
    back = ctypes.create_string_buffer(len(text))
    return (runtime.cudaMemcpy(block, text, size(len(text)), 1) == 0
            and runtime.cudaMemcpy(back, block, size(len(text)), 2) == 0 and back.raw == text)
assert runtime.cudaSetDevice(0) == 0 and runtime.cudaFree(None) == 0
"""


@pytest.fixture
def python(tmp_path) -> Program:
    return in_python(run_on(Machine(devices=2), tmp_path), PRELUDE)


def test_blocks_of_before_a_reset_are_never_handed_out_again(python: Program) -> None:
    run = python("""
before = free_memory()
def managed(out, count): return runtime.cudaMallocManaged(out, count, 1)
kinds = [runtime.cudaMalloc, runtime.cudaMallocHost, managed]
old = [malloc(count, call) for call in kinds for count in (100, 5000, MIB, 8 * MIB)]
freed = malloc(8 * MIB)
assert runtime.cudaFree(freed) == 0          # waits for the device's end
cached = malloc(8 * MIB)
assert runtime.cudaFree(cached) == 0 and runtime.cudaDeviceSynchronize() == 0
assert runtime.cudaDeviceReset() == 0
gone = {each.value >> 21 for each in [*old, freed, cached]}
assert free_memory() == before
new = [malloc(count, call) for call in kinds for count in (100, 5000, MIB, 8 * MIB)]
assert not gone & {each.value >> 21 for each in new}
assert all(works(each) for each in new)
def free(blocks): return [runtime.cudaFree(each) for each in blocks]
def free_pinned(blocks): return [runtime.cudaFreeHost(each) for each in blocks]
print(free(old[:2]), free_pinned(old[4:6]))
print(free(new[:4] + new[8:]), free_pinned(new[4:8]))
""")
    assert run.stdout == "[1, 1] [1, 1]\n[0, 0, 0, 0, 0, 0, 0, 0] [0, 0, 0, 0]\n"
    assert run.reached == 0
    assert run.stderr == ""


def test_a_reset_of_one_device_leaves_the_other_alone(python: Program) -> None:
    run = python("""
assert runtime.cudaSetDevice(1) == 0
other, cached = malloc(3 * MIB), malloc(5 * MIB)
assert works(other) and runtime.cudaFree(cached) == 0 and runtime.cudaDeviceSynchronize() == 0
assert runtime.cudaSetDevice(0) == 0
mine = malloc(3 * MIB)
assert runtime.cudaDeviceReset() == 0
assert runtime.cudaSetDevice(1) == 0
again = malloc(5 * MIB)
print(works(other), again.value == cached.value, runtime.cudaFree(other), runtime.cudaFree(mine))
""")
    assert run.stdout == "True True 0 1\n"


@pytest.mark.parametrize(
    "reset", ["runtime.cudaDeviceReset()", "driver.cuDevicePrimaryCtxReset_v2(0)"]
)
def test_a_device_works_after_many_resets(python: Program, reset: str) -> None:
    run = python(f"""
STREAM = 1
for i in range(20):
    stream = pointer()
    assert runtime.cudaStreamCreateWithFlags(byref(stream), STREAM) == 0
    status, ordered = allocate(runtime.cudaMallocAsync, size(3 * MIB), stream)
    assert status == 0 and runtime.cudaFreeAsync(ordered, stream) == 0
    live, block = malloc(2 * MIB), malloc(100)
    assert works(live) and works(block) and runtime.cudaFree(block) == 0
    assert {reset} == 0
print(works(malloc()))
""")
    assert run.stdout == "True\n"
    assert run.reached == 0
    assert run.stderr == ""


def test_a_reset_ends_the_captures_of_its_device(python: Program) -> None:
    run = python("""
stream = pointer()
assert runtime.cudaStreamCreateWithFlags(byref(stream), 1) == 0
assert runtime.cudaStreamBeginCapture(stream, 2) == 0
assert runtime.cudaDeviceReset() == 0
# More frees than may wait for the device.
blocks = [malloc(MIB) for i in range(70)]
assert all(runtime.cudaFree(block) == 0 for block in blocks)
assert malloc(MIB).value in {block.value for block in blocks}
""")
    assert run.reached == 0


def test_memory_and_streams_end_with_a_context_that_the_program_made(python: Program) -> None:
    run = python("""
primary = malloc(3 * MIB)
for i in range(50):
    context, stream = pointer(), pointer()
    assert driver.cuCtxCreate_v4(byref(context), None, 0, 0) == 0
    assert driver.cuStreamCreate(byref(stream), 1) == 0
    status, ordered = allocate(driver.cuMemAllocAsync, size(3 * MIB), stream)
    assert status == 0 and driver.cuMemFreeAsync(ordered, stream) == 0
    status, block = allocate(driver.cuMemAlloc_v2, size(8 * MIB))
    assert status == 0
    status, pinned = allocate(driver.cuMemAllocHost_v2, size(8 * MIB))
    assert status == 0
    assert driver.cuCtxDestroy_v2(context) == 0
    assert runtime.cudaFree(block) == 1
assert works(primary) and runtime.cudaFree(primary) == 0
assert runtime.cudaDeviceSynchronize() == 0
""")
    assert run.reached == 0
    facades = run.report["facades"]
    assert facades["device"]["live_bytes"] == facades["pinned"]["live_bytes"] == 0
    # New streams took the pools of the destroyed streams.
    assert run.report["peak_touched_bytes"] < 256 << 20


GREEN = """
class Part(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("bytes", ctypes.c_char * 140)]
def green_context(by_runtime):
    part, description, context = Part(), pointer(), pointer()
    library = runtime if by_runtime else driver
    prefix = "cuda" if by_runtime else "cu"
    assert getattr(library, prefix + "DeviceGetDevResource")(0, byref(part), 1) == 0
    make = getattr(library, prefix + "DevResourceGenerateDesc")
    assert make(byref(description), byref(part), 1) == 0
    flags = 0 if by_runtime else 1
    create = getattr(library, prefix + "GreenCtxCreate")
    assert create(byref(context), description, 0, flags) == 0
    return context
def stream_of(context, by_runtime):
    stream = pointer()
    create = runtime.cudaExecutionCtxStreamCreate if by_runtime else driver.cuGreenCtxStreamCreate
    assert create(byref(stream), context, 1, 0) == 0
    return stream
"""


@pytest.mark.parametrize("by_runtime", [True, False])
def test_streams_end_with_a_green_context_and_memory_does_not(
    python: Program, by_runtime: bool
) -> None:
    run = python(f"""
{GREEN}
by_runtime = {by_runtime}
primary = malloc(3 * MIB)
for i in range(50):
    context = green_context(by_runtime)
    stream = stream_of(context, by_runtime)
    status, ordered = allocate(runtime.cudaMallocAsync, size(3 * MIB), stream)
    assert status == 0 and works(ordered)
    assert runtime.cudaFreeAsync(ordered, stream) == 0
    destroy = runtime.cudaExecutionCtxDestroy if by_runtime else driver.cuGreenCtxDestroy
    assert destroy(context) == 0
assert works(primary) and runtime.cudaFree(primary) == 0
assert runtime.cudaDeviceSynchronize() == 0
""")
    assert run.reached == 0
    assert run.stderr == ""
    assert run.report["facades"]["device"]["live_bytes"] == 0
    # Its streams took the pools of the streams that were destroyed.
    assert run.report["peak_touched_bytes"] < 64 << 20
