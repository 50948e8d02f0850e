"""The group `default`: the device memory of programs that do not know groups
(docs/reference/groups.md)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine

from tests.preload.conftest import ROOT, Program
from tests.preload.test_virtual_memory import programs

# Reads the figures of the group through the C interface (uvmalloc_groups.h).
FIGURES = """
import time
library = ctypes.CDLL(next(
    line.split()[-1] for line in open("/proc/self/maps") if "/libuvmalloc_preload.so" in line))
class Info(ctypes.Structure):
    _fields_ = [("struct_bytes", size), ("state", ctypes.c_int32)]
    _fields_ += [(name, ctypes.c_uint64) for name in (
        "blocks", "bytes", "page_bytes", "device_bytes", "host_bytes", "sleeps", "wakes",
        "kept_bytes", "left_bytes", "idle_sleeps", "spill_bytes", "file_bytes")]
def figures():
    allocator, group = pointer(), ctypes.c_uint32()
    assert library.uvmalloc_process_allocator(byref(allocator)) == 0
    assert library.uvmalloc_group_open(allocator, b"default", byref(group)) == 0
    info = Info(struct_bytes=ctypes.sizeof(Info))
    assert library.uvmalloc_group_describe(allocator, group, byref(info)) == 0
    return info
def wait_until_asleep(times=1):
    deadline = time.monotonic() + 40
    while figures().idle_sleeps < times or figures().device_bytes:
        assert time.monotonic() < deadline, (figures().state, figures().device_bytes)
        time.sleep(0.001)
"""


def idle_programs(machine: Machine, folder: Path) -> Program:
    program = programs(machine, folder)
    return lambda text, **variables: program(FIGURES + text, **variables)


# Memory of each kind that a program can allocate, with different bytes.
ALL_KINDS = """
device = allocate(run("Malloc"), size(8 * MIB))[1].value
managed = allocate(run("MallocManaged"), size(4 * MIB), 1)[1].value
ordered = allocate(run("MallocAsync"), size(6 * MIB), pointer(0))[1].value
mapped = reserve(1 << 30)
assert map_at(mapped, 10 * MIB, create(10 * MIB)[1]) == 0
kinds = [(device, 8 * MIB), (managed, 4 * MIB), (ordered, 6 * MIB), (mapped, 10 * MIB)]
for value, (address, count) in enumerate(kinds, 1):
    fill(address, count, value)
"""


@pytest.mark.parametrize("hip", [False, True], ids=["cuda", "hip"])
def test_memory_of_every_kind_sleeps_while_the_program_is_idle(tmp_path: Path, hip: bool) -> None:
    program = idle_programs(Machine(hip=hip, capacity_bytes=64 << 20), tmp_path)
    run = program(
        ALL_KINDS
        + """
pinned = allocate(run("HostMalloc" if VENDOR == "hip" else "HostAlloc"), size(4 * MIB), 0)
print(figures().bytes // MIB)
wait_until_asleep()
print([byte_at(address) == byte_at(address + count - 1) == value
       for value, (address, count) in enumerate(kinds, 1)])
fill(device, 8 * MIB, 9)  # where the pages are
print(byte_at(device), byte_at(mapped))
slept, begin = figures().idle_sleeps, time.monotonic()
while time.monotonic() < begin + 0.2:
    pass
assert figures().idle_sleeps == slept, "all pages have left already"
assert run("Free")(pointer(device)) == 0 and run("FreeAsync")(pointer(ordered), None) == 0
assert run("Free")(pointer(managed)) == 0 and unmap(mapped, 10 * MIB) == 0
assert run("DeviceSynchronize")() == 0
""",
        UVMALLOC_GROUPS="default:idle=20ms",
    )
    assert run.stdout == "28\n[True, True, True, True]\n9 4\n"
    (group,) = run.report["groups"]
    assert group["name"] == "default" and group["idle_sleeps"] >= 1


def test_memory_of_every_kind_on_a_second_device(tmp_path: Path) -> None:
    run = idle_programs(Machine(devices=2, capacity_bytes=64 << 20), tmp_path)(
        """
assert run("SetDevice")(1) == 0
there = allocate(run("Malloc"), size(8 * MIB))[1].value
fill(there, 8 * MIB, 5)
assert run("SetDevice")(0) == 0
wait_until_asleep()
print(byte_at(there), figures().page_bytes // MIB)
""",
        UVMALLOC_GROUPS="default:idle=20ms",
    )
    assert run.stdout == "5 8\n"


def test_device_memory_sleeps_in_a_file(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        machine = Machine(machine="gh200", capacity_bytes=64 << 20)
        run = idle_programs(machine, tmp_path)(
            ALL_KINDS
            + """
wait_until_asleep()
print(figures().spill_bytes // MIB, figures().file_bytes // MIB)
print([byte_at(address) == byte_at(address + count - 1) == value
       for value, (address, count) in enumerate(kinds, 1)])
assert run("Free")(pointer(device)) == 0 and run("FreeAsync")(pointer(ordered), None) == 0
assert run("DeviceSynchronize")() == 0
print(figures().spill_bytes)
""",
            UVMALLOC_GROUPS=f"default:idle=20ms,file={folder}",
        )
        assert run.stdout == "14 14\n[True, True, True, True]\n0\n"


def test_a_group_that_cannot_have_its_file_sleeps_on_the_host(tmp_path: Path) -> None:
    run = idle_programs(Machine(capacity_bytes=64 << 20), tmp_path)(
        ALL_KINDS + "wait_until_asleep()\nprint(byte_at(device), byte_at(mapped))",
        UVMALLOC_GROUPS="default:idle=20ms,file=/var/tmp",
    )
    assert run.stdout == "1 4\n" and [group["name"] for group in run.report["groups"]] == [
        "default"
    ]
    assert run.stderr.count("it sleeps on the host instead") == 1
    assert "does not reach ordinary memory" in run.stderr


def test_without_the_setting_there_is_no_group(tmp_path: Path) -> None:
    run = idle_programs(Machine(capacity_bytes=64 << 20), tmp_path)(
        ALL_KINDS, UVMALLOC_GROUPS="llm:idle=20ms"
    )
    assert run.report["groups"] == []
