"""Device moves: what shares, what copies and why. No program can tell the difference."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import MOVES_PRELUDE, TORCH_MINOR, Checked, Simulate

PARTS = TORCH_MINOR >= 13  # earlier versions can share whole storages only


PRELUDE = MOVES_PRELUDE


def test_a_move_there_and_back_copies_nothing(checked: Checked) -> None:
    run = checked("""
x = torch.arange(1 << 20, dtype=torch.float32)
y = x.to('cuda')
z = y.cpu()
assert torch.equal(x, z) and y.is_cuda and z.device.type == 'cpu'
""")
    moves = run.report["moves"]
    assert (moves["host_to_device"], moves["device_to_host"]) == (1, 1)
    assert run.report["copies_by_moves"]["count"] == 0
    assert run.sim["copy_bytes"] == 0
    assert run.report["prefetches"]["sent"] >= 2


def test_writes_on_either_side_are_seen_on_that_side_only(checked: Checked) -> None:
    checked("""
for side in ('host', 'device'):
    x = torch.zeros(1 << 20)
    y = x.to('cuda')
    (x if side == 'host' else y).add_(1)
    assert x.sum().item() == (1 << 20 if side == 'host' else 0), side
    assert y.sum().item() == (0 if side == 'host' else 1 << 20), side
made = report()['materializations']
assert made['copies'] == 2 and made['bytes'] == 2 * (4 << 20), made
""")


def test_when_the_source_is_gone_the_writer_copies_nothing(checked: Checked) -> None:
    run = checked("""
y = torch.zeros(1 << 20).to('cuda')
y.add_(1)
assert y.sum().item() == 1 << 20
z = y.cpu()
del y
z.add_(1)
assert z[0].item() == 2
""")
    assert run.report["materializations"] == {"copies": 0, "bytes": 0, "steals": 2}


def test_the_host_waits_for_the_device_before_it_writes_in_place(checked: Checked) -> None:
    """The device side of a shared block was freed, but its stream may still be reading."""
    run = checked("""
x = torch.zeros(1 << 20)
y = x.to('cuda')
torch.cuda._sleep(50_000_000)
done = torch.cuda.Event()
done.record()
assert not done.query()
del y
x.add_(1)
assert done.query(), 'the host wrote while the stream was busy'
""")
    assert run.report["materializations"]["steals"] == 1


@pytest.mark.parametrize(
    "export",
    [
        "a = x.numpy(); write = lambda: a.__setitem__(0, 42)",
        "d = torch.from_dlpack(x); write = lambda: d.__setitem__(0, 42)",
        "p = x.data_ptr(); import ctypes; "
        "write = lambda: ctypes.memmove(p, ctypes.byref(ctypes.c_float(42)), 4)",
        "p = x.untyped_storage().data_ptr(); import ctypes; "
        "write = lambda: ctypes.memmove(p, ctypes.byref(ctypes.c_float(42)), 4)",
        "import numpy; a = numpy.asarray(x); write = lambda: a.__setitem__(0, 42)",
    ],
    ids=["numpy", "dlpack", "data_ptr", "storage_data_ptr", "array"],
)
def test_a_tensor_whose_pointer_has_left_is_copied(checked: Checked, export: str) -> None:
    run = checked(f"""
x = torch.zeros(1 << 20)
{export}
y = x.to('cuda')
write()
assert x[0].item() == 42
assert y[0].item() == 0, 'the exported pointer reached the moved tensor'
""")
    reasons = run.report["copies_by_moves"]["by_reason"]
    assert reasons == {
        "exported_pointer": {"count": 1, "bytes": 4 << 20, "bytes_at_or_above_threshold": 4 << 20}
    }


def test_an_export_after_the_move_gets_bytes_of_its_own(checked: Checked) -> None:
    checked("""
x = torch.zeros(1 << 20)
y = x.to('cuda')
a = x.numpy()
a[0] = 42
assert x[0].item() == 42 and y[0].item() == 0
""")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("torch.zeros(1000)", "small_block"),
        ("torch.zeros(1 << 21)[1 : (1 << 20) + 1]", "partial_storage"),  # not aligned like a copy
        ("torch.zeros(1 << 21)[: 1 << 17]", "small_block" if PARTS else "partial_storage"),
        ("torch.zeros(1 << 20, 2)[:, 0]", "layout"),
        ("torch.from_numpy(__import__('numpy').zeros(1 << 20))", "foreign_memory"),
        ("torch.frombuffer(bytearray(1 << 22), dtype=torch.float32)", "foreign_memory"),
        ("torch.zeros(1 << 20).share_memory_()", "foreign_memory"),
    ],
)
def test_what_cannot_be_shared_is_copied_and_counted(
    checked: Checked, make: str, reason: str
) -> None:
    run = checked(f"""
x = {make}
x.fill_(3)
y = x.to('cuda')
x.fill_(4)
assert y.is_cuda and y.float().mean().item() == 3 and y.shape == x.shape
assert copied() == {{{reason!r}: 1}}, copied()
""")
    assert run.report["moves"]["total"] == 0


PARTS_PROGRAM = """
x = torch.arange(4 << 20, dtype=torch.float32)
parts = [x[i << 20 : (i + 1) << 20].reshape(1024, 1024).to('cuda') for i in range(4)]
for i, part in enumerate(parts):
    assert part[0, 0].item() == i << 20 and part.shape == (1024, 1024)
    assert part.untyped_storage().nbytes() == 4 << 20 and part.storage_offset() == 0
"""


@pytest.mark.skipif(not PARTS, reason="torch shares whole storages only")
def test_parts_of_a_storage_move_without_a_copy(checked: Checked) -> None:
    run = checked(PARTS_PROGRAM)
    assert run.report["copies_by_moves"]["count"] == 0
    assert run.report["moves"]["host_to_device"] == 4
    assert run.report["moves"]["bytes"] == 16 << 20
    assert run.sim["copy_bytes"] == 4 * 4  # the elements that the program reads


@pytest.mark.skipif(PARTS, reason="torch shares parts of storages")
def test_parts_of_a_storage_are_copied_by_a_torch_that_shares_whole_ones(
    checked: Checked,
) -> None:
    run = checked(PARTS_PROGRAM)
    assert run.report["copies_by_moves"]["by_reason"]["partial_storage"]["count"] == 4


@pytest.mark.skipif(not PARTS, reason="torch shares whole storages only")
def test_writes_to_a_part_and_to_the_whole_do_not_meet(checked: Checked) -> None:
    run = checked("""
x = torch.zeros(4 << 20)
a, b = x[: 1 << 20].to('cuda'), x[1 << 20 : 2 << 20].to('cuda')
b.add_(1)
assert x.sum().item() == 0 and a.sum().item() == 0 and b.sum().item() == 1 << 20
x.add_(2)
assert a.sum().item() == 0 and b.sum().item() == 1 << 20 and x.sum().item() == 8 << 20
""")
    assert run.report["materializations"] == {"copies": 2, "bytes": 20 << 20, "steals": 0}


@pytest.mark.skipif(not PARTS, reason="torch shares whole storages only")
def test_a_whole_that_had_to_be_copied_for_a_part_keeps_its_parts(checked: Checked) -> None:
    """A buffer that is written between moves of its parts must not be copied each time."""
    run = checked("""
buffer = torch.zeros(16 << 20)
for step in range(5):
    batch = buffer[: 1 << 20].to('cuda')
    buffer[step] = 1
    assert batch.sum().item() == step
assert copied() == {'partial_storage': 4}, copied()
""")
    assert run.report["materializations"] == {"copies": 1, "bytes": 64 << 20, "steals": 0}


@pytest.mark.skipif(not PARTS, reason="torch shares whole storages only")
def test_a_part_that_is_left_alone_does_not_keep_the_whole(checked: Checked) -> None:
    checked("""
def live():
    return sum(f['live_bytes'] for f in report()['facades'].values())
x = torch.zeros(64 << 20)
small, large = x[: 1 << 20].to('cuda'), x[: 40 << 20].to('cuda')
del x, large
small.add_(1)
assert live() < 16 << 20, live()
y = torch.zeros(64 << 20)
large = y[: 40 << 20].to('cuda')
del y
before = report()['materializations']
large.add_(1)
after = report()['materializations']
assert after['copies'] == before['copies'] and after['steals'] == before['steals'] + 1
assert large.sum().item() == 40 << 20
large[:1 << 20].cpu()
torch.ops.uvmalloc.check_invariants()
""")


def test_chains_of_moves_share_one_block(checked: Checked) -> None:
    run = checked("""
x = torch.zeros(1 << 20)
chain = [x]
for _ in range(6):
    chain.append(chain[-1].to('cpu' if chain[-1].is_cuda else 'cuda'))
chain[3].add_(3)
assert [t[0].item() for t in chain] == [0, 0, 0, 3, 0, 0, 0]
del x
while len(chain) > 1:
    chain.pop(0)
chain[0].add_(1)
assert chain[0][0].item() == 1
""")
    assert run.report["copies_by_moves"]["count"] == 0
    assert run.report["materializations"] == {"copies": 1, "bytes": 4 << 20, "steals": 1}


def test_threads_that_write_to_halves_of_a_shared_tensor_lose_nothing(checked: Checked) -> None:
    checked("""
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
torch.set_num_threads(1)
parts = 4
barrier = Barrier(parts)
def write(half):
    barrier.wait()
    half.add_(1)
with ThreadPoolExecutor(parts) as pool:
    for _ in range(200):
        x = torch.zeros(1 << 18)
        y = x.to('cuda')
        list(pool.map(write, x.chunk(parts)))
        assert x.sum().item() == 1 << 18 and y.sum().item() == 0
""")


def test_a_conversion_in_the_same_call_copies(checked: Checked) -> None:
    run = checked("""
x = torch.full((1 << 20,), 1.5)
y = x.to('cuda', torch.float64)
assert y.dtype == torch.float64 and y.sum().item() == 1.5 * (1 << 20)
z = x.to('cuda', copy=True)
z.add_(1)
assert x[0].item() == 1.5
""")
    assert "conversion" in run.report["copies_by_moves"]["by_reason"]


@pytest.mark.parametrize("setting", [{"UVMALLOC_MOVE": "copy"}, {"UVMALLOC_POLICY": "off"}])
def test_moves_can_be_switched_to_copies(checked: Checked, setting: dict[str, str]) -> None:
    run = checked(
        """
x = torch.ones(1 << 20)
assert x.to('cuda').sum().item() == 1 << 20
""",
        environment=setting,
    )
    assert run.report["moves"]["total"] == 0
    assert list(run.report["copies_by_moves"]["by_reason"]) == ["mode"]


def test_the_driver_policy_moves_without_hints(checked: Checked) -> None:
    run = checked(
        """
x = torch.ones(1 << 20)
assert x.to('cuda').sum().item() == 1 << 20
""",
        policy="driver",
    )
    assert run.report["moves"]["total"] == 1
    assert run.report["prefetches"]["sent"] == 0
    assert run.report["advice"]["sent"] == 0
    assert run.sim["prefetch_calls"] == 0


def test_modules_move_and_train(checked: Checked) -> None:
    """Parameters move without copies, gradients flow through `.to`."""
    run = checked("""
import torch.nn as nn
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).to('cuda')
x = torch.randn(512, 512, requires_grad=True)
loss = model(x.to('cuda')).square().mean()
loss.backward()
assert x.grad is not None and x.grad.device.type == 'cpu' and x.grad.abs().sum() > 0
state = {k: v.cpu() for k, v in model.state_dict().items()}
torch.optim.SGD(model.parameters(), lr=0.1).step()
assert not torch.equal(state['0.weight'], model[0].weight.cpu())
torch.ops.uvmalloc.check_invariants()
""")
    assert run.report["copies_by_moves"]["bytes_at_or_above_threshold"] == 0
    assert run.report["moves"]["host_to_device"] >= 3


def test_a_loaded_checkpoint_moves(checked: Checked, tmp_path: object) -> None:
    run = checked("""
import io
buffer = io.BytesIO()
torch.save({'w': torch.ones(1 << 20)}, buffer)
buffer.seek(0)
w = torch.load(buffer)['w'].to('cuda')
w.add_(1)
assert w.sum().item() == 2 << 20
""")
    assert run.report["copies_by_moves"]["bytes_at_or_above_threshold"] == 0


def test_the_wrong_device_is_the_stock_error(same_output: Checked) -> None:
    body = """
import torch
try:
    torch.zeros(1 << 20).to('cuda:7')
except Exception as error:
    print(type(error).__name__, error)
"""
    assert "invalid device ordinal" in same_output(body).stdout


def test_between_devices_nothing_is_copied_until_one_side_is_written(checked: Checked) -> None:
    run = checked(
        """
x = torch.ones(1 << 20, device='cuda:0')
y = x.to('cuda:1')
assert y.device.index == 1 and y.sum().item() == 1 << 20
assert report()['moves']['device_to_device'] == 1 and copied() == {}
x.add_(1)
assert y.sum().item() == 1 << 20 and x.sum().item() == 2 << 20
""",
        devices=2,
    )
    assert run.report["materializations"] == {"copies": 1, "bytes": 4 << 20, "steals": 0}


def test_a_device_waits_for_the_other_before_it_reads_or_takes_over(checked: Checked) -> None:
    checked(
        """
x = torch.ones(1 << 20, device='cuda:0')
torch.cuda._sleep(50_000_000)
written = torch.cuda.Event(); written.record()
y = x.to('cuda:1')
with torch.cuda.device(1):
    torch.cuda.current_stream().synchronize()
assert written.query(), 'the second device did not wait for the first'
torch.cuda._sleep(50_000_000)
read = torch.cuda.Event(); read.record()
del x
y.add_(1)
torch.cuda.synchronize(1)
assert read.query(), 'the second device wrote while the first could read'
""",
        devices=2,
    )


def test_a_non_blocking_copy_from_managed_host_memory_may_be_overwritten(
    checked: Checked,
) -> None:
    """torch stages pageable memory, so the caller may change the source when the call returns."""
    checked("""
x = torch.zeros(1 << 20)
x.numpy()
torch.cuda._sleep(50_000_000)
y = x.to('cuda', non_blocking=True)
done = torch.cuda.Event(); done.record()
assert done.query(), 'the copy may still be reading'
x.fill_(9)
assert y.sum().item() == 0
""")


def test_a_copy_for_the_first_write_is_on_the_storages_own_device(checked: Checked) -> None:
    checked(
        """
x = torch.ones(1 << 20, device='cuda:0')
for current in (0, 1):
    with torch.cuda.device(current):
        y = x.to('cuda:1')
        y.data_ptr()
        assert y[:5].device == y.untyped_storage().device == y.device == torch.device('cuda:1')
        assert y.sum().item() == 1 << 20
assert report()['materializations']['copies'] == 2
""",
        devices=2,
    )


def test_a_copy_for_the_first_write_belongs_to_all_who_used_the_tensor(
    same_output: Checked,
) -> None:
    """The stream that writes first is not the only stream that works on the copy."""
    same_output("""
import torch
side, third = torch.cuda.Stream(), torch.cuda.Stream()
for recorded in (False, True):
    x = torch.zeros(1 << 20)
    y = x.to('cuda')
    if recorded:
        y.record_stream(third)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        y.add_(1)
    with torch.cuda.stream(third if recorded else torch.cuda.current_stream()):
        torch.cuda._sleep(500_000_000)
        y.sum()
    address = y.data_ptr()
    del y
    with torch.cuda.stream(side):
        others = [torch.empty(1 << 20, device='cuda') for _ in range(3)]
    print(all(t.data_ptr() != address for t in others))
    torch.cuda.synchronize()
""")


@pytest.mark.parametrize("loaded_late", [False, True])
@pytest.mark.parametrize("profile", ["discrete", "coherent"])
def test_a_moved_tensor_comes_back_by_its_address(
    simulate: Simulate, profile: str, loaded_late: bool
) -> None:
    """Torch asks the driver about the address, but the driver does not know ordinary memory."""
    simulate(
        """
import torch, uvmalloc
if not uvmalloc.enabled():
    torch.cuda.set_enabled_uvm(True)
class Foreign:
    def __init__(self, tensor):
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__
moved = torch.ones(1 << 20).to('cuda')
back = torch.as_tensor(Foreign(moved), device='cuda')
back.add_(1)
assert back.device == moved.device and moved[-1].item() == 2
on_host = torch.ones(1 << 20)
try:
    torch.as_tensor(type('Wrong', (), {'__cuda_array_interface__': {
        'shape': (4,), 'typestr': '<f4', 'version': 2, 'data': (on_host.data_ptr(), False)}})())
except RuntimeError as error:
    assert 'host memory' in str(error), error
else:
    assert PROFILE == 'discrete'
""".replace("PROFILE", repr(profile)),
        native=loaded_late,
        environment={"UVMSIM_PROFILE": profile},
    ).check()


def test_a_first_write_that_finds_no_memory_changes_nothing(checked: Checked) -> None:
    checked(
        """
N = 16 << 20
x = torch.zeros(N)
y = x.cuda()
for writer, other in (y, x), (x, y):
    held = []
    try:
        while True:
            held.append(torch.empty(32 << 20, dtype=torch.uint8, device='cuda'))
    except torch.OutOfMemoryError:
        pass
    try:
        writer.add_(1)
        raise SystemExit('there was memory')
    except (torch.OutOfMemoryError, RuntimeError) as error:
        assert 'memory' in str(error), error
    held.clear()
    assert (x[0].item(), y[0].item()) == (0, 0)
y.add_(1)
assert (x[0].item(), y[0].item()) == (0, 1)
del y
other = torch.full((N,), 7.0)
assert x[0].item() == 0
x.add_(2)
assert (x[0].item(), other[0].item()) == (2, 7)
""",
        budget="256MiB",
    )


def test_a_requested_format_gives_its_own_strides(same_output: Checked) -> None:
    same_output("""
import torch
torch.cuda.init()
last, plain = torch.channels_last, torch.contiguous_format
for shape in (64, 1, 256, 256), (1, 64, 256, 256), (64, 256, 1, 256):
    x = torch.ones(shape)
    for source in x, x.contiguous(memory_format=last):
        moved = [source.to('cuda', memory_format=f) for f in (last, plain)] + [source.to('cuda')]
        print([(t.stride(), (t * 1).stride(), t.sum().item()) for t in moved])
x = torch.ones(1 << 20).as_strided((1, 1 << 20), (7, 1))
print(x.to('cuda').stride(), x.to('cuda', memory_format=plain).stride())
print(torch.nn.Conv2d(1, 4096, 9).to('cuda', memory_format=last).weight.stride())
""")


def test_an_address_that_a_tensor_has_left_waits_for_its_readers_on_all_streams(
    checked: Checked,
) -> None:
    """A request for the pointer changes the tensor's bytes; kernels may still read the old ones."""
    checked("""
x = torch.ones(1 << 20)
y = x.cuda()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.empty(1, device='cuda')
torch.cuda.synchronize()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    torch.cuda._sleep(500_000_000)
    y.sum()
read = side.record_event()
y.data_ptr()
x.fill_(5)
assert read.query()
""")


@pytest.mark.parametrize(
    "file", ["/home/me/torch/serialization.py", "/srv/uvmalloc/loading.py", "\\udcff.py"]
)
def test_a_pointer_that_a_file_of_any_name_asks_for_has_left(checked: Checked, file: str) -> None:
    """Also if the file is named like one of torch's files, or its name is not UTF-8."""
    checked(f"""
x = torch.zeros(1 << 20)
exec(compile('pointer = x.data_ptr()', '{file}', 'exec'))
y = x.to('cuda')
assert y.data_ptr() != x.data_ptr()
assert copied() == {{'exported_pointer': 1}}, copied()
""")


def test_a_pointer_that_an_object_takes_while_it_is_loaded_has_left(checked: Checked) -> None:
    """torch.load itself keeps no address, but an object that it restores may."""
    checked("""
import io
class Keeper:
    def __setstate__(self, state):
        self.tensor = state['tensor']
        self.pointer = self.tensor.data_ptr()
keeper, file = Keeper(), io.BytesIO()
keeper.tensor = torch.ones(1 << 20)
torch.save([keeper, torch.ones(1 << 20)], file)
file.seek(0)
keeper, plain = torch.load(file, weights_only=False)
assert keeper.tensor.to('cuda').sum() == plain.to('cuda').sum()
assert copied() == {'exported_pointer': 1}, copied()
""")


def test_a_move_copies_where_a_pointer_leaves_while_it_is_under_way(checked: Checked) -> None:
    """The callback runs after the move has found no reason to copy, but before the move shares."""
    checked(
        """
import torch.cuda._gpu_trace as trace
torch._C._activate_gpu_trace()
x = torch.ones(1 << 20, device='cuda:0')
pointers = []
trace.register_callback_for_event_wait(
    lambda *event: pointers or pointers.append(x.data_ptr()))
y = x.to('cuda:1')
assert pointers, 'the move has made no stream wait'
assert copied() == {'exported_pointer': 1}, copied()
assert x.data_ptr() == pointers[0] != y.data_ptr()
""",
        devices=2,
    )


@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_a_pointer_that_leaves_after_a_move_has_shared_keeps_its_block(
    checked: Checked, source: str
) -> None:
    """Acts like a move on another thread between taking the pointer and giving it to Python.

    A snapshot names the address without giving it out, and a stream's handle leaves like a pointer.
    """
    checked(f"""
import ctypes
x = torch.zeros(1 << 20, device='{source}')
y = x.to('cpu' if x.is_cuda else 'cuda')
z = x.to('cpu' if x.is_cuda else 'cuda')
blocks = [block for each in torch.cuda.memory_snapshot() for block in each['blocks']]
[pointer] = [block['address'] for block in blocks if block['requested_size'] == 4 << 20]
assert torch.cuda.ExternalStream(pointer).cuda_stream == pointer
torch.cuda.synchronize()
ctypes.memmove(pointer, ctypes.byref(ctypes.c_float(42)), 4)
assert x[0].item() == 42 and y[0].item() == z[0].item() == 0
assert x.data_ptr() == pointer and copied() == {{}}, copied()
assert x.to('cpu' if x.is_cuda else 'cuda')[0].item() == 42
assert copied() == {{'exported_pointer': 1}}, copied()
y.fill_(7)
assert x.sum().item() == 42
torch.ops.uvmalloc.check_invariants()
""")
