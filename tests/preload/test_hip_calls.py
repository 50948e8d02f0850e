"""HIP's allocation calls, which uvmalloc serves like CUDA's (test_allocation_calls.py)."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from uvmalloc._cli.report import show_report

from tests.build_facts import found_by_cmake
from tests.preload.conftest import ROOT, Program, in_python, listed_calls

PRELUDE = """
runtime = ctypes.CDLL("libamdhip64.so.7")
assert runtime.hipSetDevice(0) == 0 and runtime.hipFree(None) == 0
"""


@pytest.fixture
def python(hip_program: Program) -> Program:
    return in_python(hip_program, PRELUDE)


def test_rows_of_pitched_memory_are_aligned(python: Program) -> None:
    run = python("""
block, pitch = pointer(), size()
assert runtime.hipMallocPitch(byref(block), byref(pitch), size(1000), size(7)) == 0
print(pitch.value, runtime.hipFree(block))
assert runtime.hipMemAllocPitch(byref(block), byref(pitch), size(512), size(3), 4) == 0
print(pitch.value, runtime.hipFree(block))
""")
    assert (run.stdout, run.served, run.reached) == ("1024 0\n512 0\n", 2, 0)


def test_the_report_names_the_vendor_whose_calls_were_served(python: Program) -> None:
    run = python("status, block = allocate(runtime.hipMalloc, size(MIB))", UVMALLOC_CUDA="1")
    shown = Console(width=200, record=True, markup=False, file=io.StringIO())
    show_report(run.report, shown)
    assert "HIP calls served: hipMalloc 1" in shown.file.getvalue()
    assert "CUDA calls served" not in shown.file.getvalue()


def test_a_default_pool_is_served_and_another_one_is_hips(python: Program) -> None:
    run = python("""
default, current = pointer(), pointer()
assert runtime.hipDeviceGetDefaultMemPool(byref(default), 0) == 0
status, block = allocate(runtime.hipMallocFromPoolAsync, size(MIB), default, None)
print(status, runtime.hipFreeAsync(block, None))
""")
    assert (run.stdout, run.served, run.reached) == ("0 0\n", 1, 0)


def test_memory_of_another_grain_is_hips(python: Program) -> None:
    coherent = 0x40000000
    run = python(f"""
status, block = allocate(runtime.hipHostMalloc, size(MIB), {coherent})
print(status, runtime.hipHostFree(block), allocate(runtime.hipMalloc, size(MIB))[0])
""")
    assert (run.stdout, run.served) == ("0 0 0\n", 1)
    assert run.report["cuda_calls"]["hipHostMalloc"]["left"] == 1


def test_a_look_up_by_name_gives_ours(python: Program) -> None:
    run = python("""
found, status = pointer(), ctypes.c_int()
look_up = runtime.hipGetProcAddress
assert look_up(b"hipMalloc", byref(found), 600, ctypes.c_uint64(0), byref(status)) == 0
function = ctypes.CFUNCTYPE(ctypes.c_int, pointer, size)(found.value)
block = pointer()
assert function(ctypes.addressof(block), MIB) == 0 and runtime.hipFree(block) == 0
""")
    assert (run.served, run.reached) == (1, 0)


def test_without_migration_every_call_is_hips_and_one_line_says_why(python: Program) -> None:
    run = python(
        """
for i in range(3):
    status, block = allocate(runtime.hipMalloc, size(MIB))
    assert status == 0 and runtime.hipFree(block) == 0
""",
        HSA_XNACK="0",
    )
    assert (run.served, run.reached) == (0, 3)
    [line] = run.stderr.splitlines()
    assert "XNACK is off" in line


def test_every_served_call_is_declared_by_hip_and_exported_by_a_version_of_it() -> None:
    names = listed_calls("hip")
    assert len(names) == len(set(names)) > 25
    folder = found_by_cmake("UVMALLOC_HIP_INCLUDE_DIR")
    declared = (Path(folder) / "hip" / "hip_runtime_api.h").read_text()
    # The header declares no forms for a default stream per thread.
    plain = [name.removesuffix("_spt") for name in names]
    assert [name for name in plain if not re.search(rf"\b{name}\b", declared)] == []
    exported = set((ROOT / "sim" / "hip" / "hip_symbols.txt").read_text().split())
    assert set(names) - exported == set()


def test_attributes_of_an_address_are_those_of_its_block(python: Program) -> None:
    run = python("""
status, block = allocate(runtime.hipMalloc, size(100_000))
status, pinned = allocate(runtime.hipHostMalloc, size(5000), 0)
RANGE_START, RANGE_SIZE = 11, 12
start, bytes, on_device = pointer(), size(), pointer()
inside = pointer(block.value + 50_000)
assert runtime.hipPointerGetAttribute(byref(start), RANGE_START, inside) == 0
assert runtime.hipPointerGetAttribute(byref(bytes), RANGE_SIZE, inside) == 0
assert runtime.hipHostGetDevicePointer(byref(on_device), pinned, 0) == 0
print(start.value == block.value, bytes.value, on_device.value == pinned.value)
""")
    assert run.stdout == "True 100000 True\n"


def test_a_request_beyond_the_budget_is_refused_as_by_hip(python: Program) -> None:
    run = python(
        """
print(allocate(runtime.hipMalloc, size(96 * MIB))[0], runtime.hipGetLastError())
print(allocate(runtime.hipHostMalloc, size(96 * MIB), 0)[0])
""",
        UVMALLOC_BUDGET="64MiB",
    )
    assert run.stdout == "2 2\n2\n"
    assert (run.served, run.reached) == (0, 0)


@pytest.mark.parametrize(("version", "device_type"), [(5, 1), (6, 2), (7, 2)])
def test_memory_called_device_memory_has_the_number_of_the_version_that_runs(
    hip_program: Program, version: int, device_type: int
) -> None:
    run = in_python(hip_program, f'runtime = ctypes.CDLL("libamdhip64.so.{version}")\n')(
        """
class Attributes(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("device_pointer", pointer),
                ("host_pointer", pointer), ("is_managed", ctypes.c_int), ("flags", ctypes.c_uint)]
assert runtime.hipSetDevice(0) == 0 and runtime.hipFree(None) == 0
def ask(address):
    answer, by_name, MEMORY_TYPE = Attributes(), ctypes.c_uint(), 2
    assert runtime.hipPointerGetAttributes(byref(answer), address) == 0
    assert runtime.hipPointerGetAttribute(byref(by_name), MEMORY_TYPE, address) == 0
    return answer.type, by_name.value, answer.is_managed
print(*ask(allocate(runtime.hipMalloc, size(MIB))[1]))
""",
        UVMALLOC_POINTER_TYPE="device",
    )
    assert run.stdout == f"{device_type} {device_type} 0\n"
    assert run.served == 1


@pytest.mark.parametrize("switch", ["0", "1"])
@pytest.mark.parametrize("version", [5, 6, 7])
def test_every_free_of_hip_frees_every_kind(
    hip_program: Program, version: int, switch: str
) -> None:
    run = in_python(hip_program, f'runtime = ctypes.CDLL("libamdhip64.so.{version}")\n')(
        """
assert runtime.hipSetDevice(0) == 0
for free in (runtime.hipFree, runtime.hipHostFree, runtime.hipFreeHost):
    pinned, managed = (runtime.hipHostMalloc, 0), (runtime.hipMallocManaged, 1)
    for call, *more in ((runtime.hipMalloc,), pinned, managed):
        status, block = allocate(call, size(MIB), *more)
        print(status, free(block), free(block), end=" ")
""",
        UVMALLOC_CUDA=switch,
    )
    assert run.stdout == "0 0 1 " * 9


def test_blocks_of_before_a_reset_are_never_handed_out_again(python: Program) -> None:
    run = python("""
def new(*sizes): return [allocate(runtime.hipMalloc, size(count))[1] for count in sizes]
for i in range(5):
    old = new(100, MIB, 8 * MIB)
    assert runtime.hipFree(old[1]) == 0 and runtime.hipDeviceSynchronize() == 0
    assert runtime.hipDeviceReset() == 0
    fresh = new(100, MIB, 8 * MIB)
    assert not {each.value >> 21 for each in old} & {each.value >> 21 for each in fresh}
    assert all(runtime.hipMemset(each, 1, size(100)) == 0 for each in fresh)
    assert runtime.hipFree(old[0]) == 1
    assert all(runtime.hipFree(each) == 0 for each in fresh)
print("done")
""")
    assert (run.stdout, run.reached, run.stderr) == ("done\n", 0, "")
