"""Virtual memory management of a program (cuMemAddressReserve, cuMemCreate, cuMemMap), served by
uvmalloc. tests/preload/programs/virtual_memory_fuzz.cpp compares random calls with the
driver's answers; these tests are about memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine

from tests.preload.conftest import Program, in_python, run_on

MIB = 1 << 20
PRELUDE = """
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("windows", pointer), ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]
class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]
PAGE = 2 * MIB
if VENDOR == "cuda":
    driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
    call = lambda name: getattr(driver, "cuMem" + name)
    run = lambda name: getattr(runtime, "cuda" + name)
else:
    runtime = ctypes.CDLL("libamdhip64.so.7")
    call = lambda name: getattr(runtime, "hipMem" + name)
    run = lambda name: getattr(runtime, "hip" + name)
def reserve(count):
    status, address = allocate(call("AddressReserve"), size(count), size(0), pointer(0), 0)
    assert status == 0, status
    return address.value
def create(count, device=0, **fields):
    properties = Properties(type=1, location=Location(1, device), **fields)
    return allocate(call("Create"), size(count), byref(properties), ctypes.c_ulonglong(0))
def map_at(address, count, handle, device=0):
    status = call("Map")(pointer(address), size(count), size(0), handle, ctypes.c_ulonglong(0))
    access = Access(Location(1, device), 3)
    return status or call("SetAccess")(pointer(address), size(count), byref(access), size(1))
def unmap(address, count):
    return call("Unmap")(pointer(address), size(count))
def release(handle):
    return call("Release")(handle)
def fill(address, count, value):
    assert run("Memset")(pointer(address), value, size(count)) == 0
def byte_at(address):
    back = (ctypes.c_ubyte * 1)()
    assert run("Memcpy")(back, pointer(address), size(1), 2) == 0
    return back[0]
def free_bytes():
    free, total = size(), size()
    assert run("MemGetInfo")(byref(free), byref(total)) == 0
    return free.value
assert run("SetDevice")(0) == 0 and run("Free")(None) == 0
"""


def programs(machine: Machine, folder: Path) -> Program:
    vendor = "hip" if machine.hip else "cuda"
    return in_python(run_on(machine, folder), f"VENDOR = {vendor!r}\n" + PRELUDE)


@pytest.fixture
def small(tmp_path: Path) -> Program:
    """Runs programs on a device of 64 MiB."""
    return programs(Machine(devices=2, capacity_bytes=64 * MIB), tmp_path)


# A pool that reserves addresses once and grows by 2 MiB, as llama.cpp's pool does.
POOL = """
base, used = reserve(1 << 35), 0
while used < 96 * MIB:
    status, handle = create(PAGE)
    if status != 0:
        break
    assert map_at(base + used, PAGE, handle) == 0 and release(handle) == 0
    fill(base + used, PAGE, used // PAGE + 1)
    used += PAGE
print(status, used // MIB, all(byte_at(base + at) == at // PAGE + 1 for at in range(0, used, PAGE)))
"""


@pytest.mark.parametrize("hip", [False, True], ids=["cuda", "hip"])
def test_a_pool_larger_than_the_device_has_its_bytes(tmp_path: Path, hip: bool) -> None:
    run = programs(Machine(hip=hip, capacity_bytes=64 * MIB), tmp_path)(
        POOL + "print(unmap(base, used), call('AddressFree')(pointer(base), size(1 << 35)))"
    )
    assert run.stdout == "0 96 True\n0 0\n"
    counts = run.report["cuda_calls"]
    name = "hipMem" if hip else "cuMem"
    assert (counts[f"{name}Create"]["served"], counts[f"{name}Map"]["served"]) == (48, 48)


def test_the_device_alone_refuses_the_pool(small: Program) -> None:
    status, used, right = small(POOL, UVMALLOC_CUDA="0").stdout.split()
    assert (status, right) == ("2", "True") and int(used) < 64


@pytest.mark.parametrize("variable", ["UVMALLOC_BUDGET", "UVMALLOC_DEVICE_BUDGET"])
def test_handles_count_against_the_limits(small: Program, variable: str) -> None:
    run = small(
        """
handles = []
while True:
    status, handle = create(PAGE)
    if status: break
    handles.append(handle)
full = status, len(handles), allocate(run("Malloc"), size(PAGE))[0]
base = reserve(1 << 30)
print(full, [map_at(base + i * PAGE, PAGE, each) for i, each in enumerate(handles)])
print(create(PAGE)[0], unmap(base, 4 * PAGE), create(PAGE)[0])
print([release(each) for each in handles[:4]], [create(PAGE)[0] for _ in range(5)])
""",
        **{variable: "16MiB"},
    )
    assert run.stdout.splitlines() == [
        "(2, 8, 2) [0, 0, 0, 0, 0, 0, 0, 0]",
        "2 0 2",
        "[0, 0, 0, 0] [0, 0, 0, 0, 2]",
    ]


def test_free_memory_counts_handles(small: Program) -> None:
    run = small("""
assert release(create(PAGE)[1]) == 0  # the first call makes the allocator
before = free_bytes()
status, handle = create(8 * MIB)
held = before - free_bytes()
base = reserve(1 << 30)
reserved = before - free_bytes()
assert map_at(base, 8 * MIB, handle) == 0
mapped = before - free_bytes()
assert unmap(base, 8 * MIB) == 0 and release(handle) == 0
print(held // MIB, reserved // MIB, mapped // MIB, (before - free_bytes()) // MIB)
""", UVMALLOC_BUDGET="40MiB")
    assert run.stdout == "8 8 8 0\n"


def test_unmapped_bytes_wait_for_the_next_mapping_of_their_handle(small: Program) -> None:
    run = small("""
base, other = reserve(1 << 30), reserve(1 << 30)
(_, first), (_, second) = create(3 * PAGE), create(PAGE)
assert map_at(base, 3 * PAGE, first) == 0
fill(base, 3 * PAGE, 7)
assert unmap(base, 3 * PAGE) == 0
assert map_at(base + PAGE, PAGE, second) == 0        # pushes the bytes aside
fill(base + PAGE, PAGE, 9)
assert map_at(other, PAGE, first) == 0               # a part of them
print(byte_at(other), byte_at(other + PAGE - 1), byte_at(base + PAGE))
fill(other, PAGE, 8)
assert unmap(other, PAGE) == 0 and map_at(other + 4 * PAGE, 3 * PAGE, first) == 0
print([byte_at(other + (4 + i) * PAGE) for i in range(3)])
assert unmap(other + 4 * PAGE, 3 * PAGE) == 0
print(call("AddressFree")(pointer(other), size(1 << 30)))
assert map_at(base + 2 * PAGE, 3 * PAGE, first) == 0
print([byte_at(base + (2 + i) * PAGE) for i in range(3)], byte_at(base + PAGE))
""")
    assert run.stdout.splitlines() == ["7 7 9", "[8, 7, 7]", "0", "[8, 7, 7] 9"]


@pytest.mark.parametrize("variable", ["UVMALLOC_BUDGET", "UVMALLOC_DEVICE_BUDGET"])
def test_bytes_move_while_the_limits_are_reached(small: Program, variable: str) -> None:
    run = small(
        """
base, other, part = reserve(1 << 30), reserve(1 << 30), 8 * MIB
handles = [create(part)[1] for _ in range(4)]
for i, each in enumerate(handles):
    assert map_at(base + i * part, part, each) == 0
    fill(base + i * part, part, i + 1)
print(create(PAGE)[0], unmap(base, 4 * part))
print([map_at(base + i * part, part, handles[i - 1]) for i in range(4)])
print([byte_at(base + i * part) for i in range(4)], unmap(base, 4 * part))
print(map_at(other, part, handles[2]), byte_at(other + part - 1))
print(call("AddressFree")(pointer(base), size(1 << 30)), create(PAGE)[0])
assert [release(each) for each in handles[:2]] == [0, 0]
print([create(part)[0] for _ in range(3)])
""",
        **{variable: "32MiB"},
    )
    assert run.stdout.splitlines() == [
        "2 0",
        "[0, 0, 0, 0]",
        "[4, 1, 2, 3] 0",
        "0 3",
        "0 2",
        "[0, 0, 2]",
    ]


def test_bytes_move_and_pages_return_during_a_capture(small: Program) -> None:
    run = small("""
base, (_, kept), (_, other), (_, third) = reserve(1 << 30), create(PAGE), create(PAGE), create(PAGE)
for i, each in enumerate((kept, third)):
    assert map_at(base + i * PAGE, PAGE, each) == 0
fill(base, PAGE, 6)
assert unmap(base, PAGE) == 0
stream, graph = pointer(), pointer()
assert runtime.cudaStreamCreate(byref(stream)) == 0
assert runtime.cudaStreamBeginCapture(stream, 2) == 0          # relaxed
print(map_at(base + 5 * PAGE, PAGE, other), map_at(base + 4 * PAGE, PAGE, kept))
print(unmap(base + PAGE, PAGE))
print(release(third), runtime.cudaStreamEndCapture(stream, byref(graph)))
print(byte_at(base + 4 * PAGE), [create(PAGE)[0] for _ in range(3)])
""", UVMALLOC_BUDGET="8MiB")
    assert run.stdout.splitlines() == ["0 0", "0", "0 0", "6 [0, 0, 2]"]


def test_a_pool_that_grows_beside_its_range_gets_another_range(small: Program) -> None:
    """As NVIDIA's sample of a growing vector does it, which checks that the ranges are adjacent."""
    run = small("""
def reserve_at(address, count):
    out = pointer()
    assert call("AddressReserve")(byref(out), size(count), size(0), pointer(address), 0) == 0
    return out.value
ends = []
for _ in range(20):
    base = reserve_at(ends[-1] if ends else 0, PAGE)
    assert base not in ends
    ends.append(base + PAGE)
print("no two are adjacent")
""")
    assert run.stdout == "no two are adjacent\n"


def test_attributes_are_those_of_the_mapping(small: Program) -> None:
    run = small("""
base, (_, handle) = reserve(1 << 30), create(2 * PAGE, device=1)
assert map_at(base + PAGE, 2 * PAGE, handle) == 0
assert map_at(base + 3 * PAGE, PAGE, create(PAGE, device=1)[1]) == 0
def attribute(number, kind):
    out = kind()
    assert driver.cuPointerGetAttribute(byref(out), number, pointer(base + 2 * PAGE)) == 0
    return out.value
class Attributes(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("rest", pointer * 2),
                ("reserved", ctypes.c_long * 8)]
seen = Attributes()
assert runtime.cudaPointerGetAttributes(byref(seen), pointer(base + PAGE)) == 0
print("device", attribute(9, ctypes.c_int), seen.device)
print("mapping", attribute(19, ctypes.c_uint64) - base, attribute(18, ctypes.c_uint64))
print("range", attribute(11, ctypes.c_uint64) - base, attribute(12, ctypes.c_uint64))
""")
    assert run.stdout.splitlines() == [
        "device 1 1",
        f"mapping {2 * MIB} {4 * MIB}",
        f"range {2 * MIB} {6 * MIB}",
    ]


# For a request beyond their range, PyTorch's expandable segments create the handles of the whole
# range before they map one. Without a refusal they go on behind the last address.
def test_an_unused_range_larger_than_the_device_is_never_completed(small: Program) -> None:
    run = small("""
def complete(count, part, mapped=0):
    base, handles = reserve(count), []
    for i in range(mapped):
        assert map_at(base + i * part, part, create(part)[1]) == 0
    while (mapped + len(handles)) * part < count:
        status, handle = create(part)
        if status: break
        handles.append(handle)
    full = mapped + len(handles)
    places = range(base + mapped * part, base + count, part)
    assert all(map_at(at, part, each) == 0 for at, each in zip(places, handles))
    return status, count // part - full
print(complete(72 * MIB, 2 * MIB), complete(72 * MIB, 8 * MIB), complete(32 * MIB, 8 * MIB))
print(complete(72 * MIB, 8 * MIB, mapped=1))
""")
    assert run.stdout == "(2, 1) (2, 1) (0, 0)\n(0, 0)\n"


def test_what_managed_memory_cannot_do_is_refused(small: Program) -> None:
    run = small("""
base = reserve(1 << 30)
status, handle = create(PAGE, handles=1)
assert map_at(base, PAGE, handle) == 0
out = pointer()
print("second mapping", map_at(base + PAGE, PAGE, handle))
print("export", driver.cuMemExportToShareableHandle(byref(out), handle, 1, ctypes.c_ulonglong(0)))
print("range", driver.cuMemGetHandleForAddressRange(
    byref(out), pointer(base), size(PAGE), 1, ctypes.c_ulonglong(0)))
for bind, device in ((driver.cuMulticastBindMem, []), (driver.cuMulticastBindMem_v2, [0])):
    arguments = size(0), handle, size(0), size(PAGE), ctypes.c_ulonglong(0)
    print("multicast", bind(pointer(5), *device, *arguments))
print("free", run("Free")(pointer(base)), driver.cuMemFree_v2(pointer(base)))
print("still there", byte_at(base), unmap(base, PAGE), release(handle))
""")
    assert run.stdout.splitlines() == [
        "second mapping 801",
        "export 801",
        "range 801",
        "multicast 801",
        "multicast 801",
        "free 1 1",
        "still there 0 0 0",
    ]


@pytest.mark.parametrize(
    ("fields", "status"),
    [("usage=1", 0), ("type=3", 1), ("location=Location(3, 0)", 801)],
    ids=["tile pool", "unknown type", "host"],
)
def test_other_memory_is_the_drivers(small: Program, fields: str, status: int) -> None:
    run = small(f"""
properties = Properties(**{{"type": 1, "location": Location(1, 0), **dict({fields})}})
print(allocate(driver.cuMemCreate, size(PAGE), byref(properties), ctypes.c_ulonglong(0))[0])
create(PAGE)
""")
    assert run.stdout == f"{status}\n"
    assert run.report["cuda_calls"]["cuMemCreate"]["left"] == 1


def test_compressible_memory_is_not_compressed(small: Program) -> None:
    run = small("""
status, handle = create(PAGE, compression=1)
found = Properties(compression=9)
print(status, driver.cuMemGetAllocationPropertiesFromHandle(byref(found), handle))
print(found.compression, found.type, found.location.type)
""")
    assert run.stdout == "0 0\n0 1 1\n"


@pytest.mark.parametrize(
    "setting",
    [{"UVMALLOC_VIRTUAL_MEMORY": "0"}, {"UVMALLOC_EXCLUDE": "libffi"}],
    ids=["variable", "caller"],
)
def test_a_setting_leaves_it_to_the_driver(small: Program, setting: dict[str, str]) -> None:
    status, used, right = small(POOL, **setting).stdout.split()
    assert (status, right) == ("2", "True") and int(used) < 64


def test_a_reset_ends_what_the_device_has(small: Program) -> None:
    run = small("""
def pool(device):
    assert run("SetDevice")(device) == 0 and run("Free")(None) == 0
    base, (status, handle) = reserve(1 << 30), create(8 * MIB, device)
    assert status == 0 and map_at(base, 8 * MIB, handle, device) == 0
    fill(base, 8 * MIB, 3 + device)
    return base, handle
for _ in range(3):
    lost, kept = pool(0), pool(1)
    waiting = create(8 * MIB)[1]
    assert run("SetDevice")(0) == 0 and run("DeviceReset")() == 0
    print(unmap(lost[0], 8 * MIB), release(lost[1]), release(waiting), byte_at(kept[0]))
    assert unmap(kept[0], 8 * MIB) == 0 and release(kept[1]) == 0
""", UVMALLOC_BUDGET="40MiB")
    assert run.stdout.splitlines() == ["1 1 1 4"] * 3
    assert run.stderr == ""


def test_a_forked_child_leaves_its_parents_memory_alone(small: Program) -> None:
    run = small("""
base, (status, handle) = reserve(1 << 30), create(PAGE)
assert map_at(base, PAGE, handle) == 0
fill(base, PAGE, 5)
child = os.fork()
if child == 0:
    failed = unmap(base, PAGE) and release(handle) and create(PAGE)[0]
    os._exit(0 if failed else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), byte_at(base), unmap(base, PAGE))
""")
    assert run.stdout == "0 5 0\n"


def test_threads_map_and_unmap_side_by_side(small: Program) -> None:
    run = small("""
import threading
def work(index):
    run("SetDevice")(0)
    base = reserve(64 * MIB)
    for step in range(40):
        (_, one), (_, two) = create(PAGE), create(2 * PAGE)
        assert map_at(base, PAGE, one) == 0 and map_at(base + PAGE, 2 * PAGE, two) == 0
        fill(base, 3 * PAGE, 16 * index + step % 16)
        status, block = allocate(run("Malloc"), size(3 * MIB))
        assert status == 0
        right.append(byte_at(base + 3 * PAGE - 1) == 16 * index + step % 16)
        assert release(one) == 0 and unmap(base, 3 * PAGE) == 0 and release(two) == 0
        assert run("Free")(block) == 0
    assert call("AddressFree")(pointer(base), size(64 * MIB)) == 0
right = []
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
print(len(right), all(right))
""")
    assert run.stdout == "160 True\n"


def test_the_first_call_may_come_before_the_driver_is_initialised(tmp_path: Path) -> None:
    run = in_python(run_on(Machine(), tmp_path), "driver = ctypes.CDLL('libcuda.so.1')\n")(
        """
print(allocate(driver.cuMemAddressReserve, size(2 * MIB), size(0), pointer(0), 0)[0])
assert driver.cuInit(0) == 0
print(allocate(driver.cuMemAddressReserve, size(2 * MIB), size(0), pointer(0), 0)[0])
"""
    )
    assert run.stdout == "3\n0\n"
