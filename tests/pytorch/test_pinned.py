"""Pinned memory: its figures, who may reuse a block and when, and the loader's thread."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import Checked, Simulate


def test_pinned_figures_have_the_same_names_and_where_defined_the_same_values(
    same_output: Checked,
) -> None:
    same_output("""
import torch
torch.cuda.init()
stats = torch.cuda.host_memory_stats
print(sorted(stats()), sorted(torch.cuda.host_memory_stats_as_nested_dict()))
tensors = [torch.empty(n, dtype=torch.uint8, pin_memory=True) for n in (512, 2 << 20, 4 << 20)]
print({k: v for k, v in stats().items() if k.startswith(('active_bytes.', 'active_requests.'))})
print(stats()['num_host_free'], stats()['num_host_alloc'] > 0,
      stats()['num_host_alloc'] == stats()['allocations.allocated'],
      stats()['allocated_bytes.current'] >= stats()['active_bytes.current'])
torch.cuda.reset_accumulated_host_memory_stats()
print(stats()['active_bytes.allocated'], stats()['active_bytes.current'])
""")


def test_pinned_figures_follow_what_is_freed_reset_and_given_back(simulate: Simulate) -> None:
    simulate("""
import torch
torch.cuda.init()
stats = torch.cuda.host_memory_stats
first, second = (torch.empty(40 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2))
assert stats()['host_alloc_time.count'] >= 1, stats()
assert stats()['host_alloc_time.max'] >= stats()['host_alloc_time.min']
assert stats()['host_alloc_time.total'] >= stats()['host_alloc_time.max']
del second
assert stats()['active_bytes.current'] == 40 << 20
assert stats()['active_bytes.peak'] == 80 << 20
assert stats()['active_requests.freed'] == 1
torch.cuda.reset_peak_host_memory_stats()
assert stats()['active_bytes.peak'] == 40 << 20
del first
assert stats()['allocated_bytes.current'] == 80 << 20
torch._C._host_emptyCache()
assert stats()['allocated_bytes.current'] == 0
assert stats()['host_free_time.count'] == stats()['host_alloc_time.count']
""").check()


def test_emptying_the_pinned_cache_leaves_the_devices_alone(simulate: Simulate) -> None:
    simulate("""
import torch
gone = torch.empty(8 << 20, dtype=torch.uint8, device='cuda')
del gone
torch._C._host_emptyCache()
assert torch.cuda.memory_reserved() == 8 << 20
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0
""").check()


def test_who_is_pinned(same_output: Checked) -> None:
    same_output("""
import torch
torch.cuda.init()
plain = torch.arange(10_000)
pinned = plain.pin_memory()
print(plain.is_pinned(), pinned.is_pinned(), pinned[5:].is_pinned(), torch.equal(plain, pinned))
print(pinned.pin_memory() is pinned or pinned.pin_memory().data_ptr() == pinned.data_ptr())
print(pinned.untyped_storage().is_pinned(), plain.untyped_storage().is_pinned(),
      plain.untyped_storage().pin_memory().is_pinned())
print(torch.empty(0).pin_memory().is_pinned(), torch.zeros(3, pin_memory=True).is_pinned())
print(plain.cuda().cpu().is_pinned(), pinned.clone().is_pinned())
try:
    plain.cuda().pin_memory()
except RuntimeError as error:
    print(str(error).splitlines()[0])
""")


def test_a_loader_pins_in_its_thread_and_batches_arrive_whole(same_output: Checked) -> None:
    same_output("""
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(4096.).view(64, 64), torch.arange(64))
torch.cuda.init()
for workers in (0, 2):
    loader = DataLoader(data, batch_size=8, pin_memory=True, num_workers=workers)
    rows = []
    for batch, labels in loader:
        assert batch.is_pinned() and labels.is_pinned()
        on_device = batch.to('cuda', non_blocking=True)
        rows.append((on_device.sum().item(), labels.to('cuda', non_blocking=True).sum().item()))
    print(workers, rows)
""")


def test_a_block_used_on_two_streams_waits_for_both(same_output: Checked) -> None:
    same_output("""
import torch
device = torch.empty(1 << 20, device='cuda')
other = torch.empty(1 << 20, device='cuda')
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
pinned = torch.empty(1 << 20, pin_memory=True)
address = pinned.data_ptr()
device.copy_(pinned, non_blocking=True)
with torch.cuda.stream(side):
    torch.cuda._sleep(200_000_000)
    other.copy_(pinned, non_blocking=True)
del pinned
torch.cuda.current_stream().synchronize()
second = torch.empty(1 << 20, pin_memory=True)
print(second.data_ptr() != address)
side.synchronize()
third = torch.empty(1 << 20, pin_memory=True)
print(third.data_ptr() == address)
""")


def test_ordinary_memory_that_the_program_registers_is_pinned(simulate: Simulate) -> None:
    simulate(
        """
import torch
x = torch.ones(4 << 20)
runtime = torch.cuda.cudart()
address = x.data_ptr()
assert not x.is_pinned()
torch.cuda.check_error(runtime.cudaHostRegister(address, x.nbytes, 0))
assert x.is_pinned() and not torch.ones(4 << 20).is_pinned()
torch.cuda.check_error(runtime.cudaHostUnregister(address))
assert not x.is_pinned()
""",
        environment={"UVMSIM_PROFILE": "coherent"},
    ).check()


def test_host_memory_that_a_program_registers_is_pinned_until_it_no_longer_is(
    same_output: Checked,
) -> None:
    same_output("""
import torch
cudart = torch.cuda.cudart()
for count in 1000, 1 << 20:
    x = torch.ones(count)
    address, size = x.data_ptr(), x.numel() * 4
    print(int(cudart.cudaHostRegister(address, size, 0)), x.is_pinned(), x[5:].is_pinned())
    print(x.to('cuda', non_blocking=True).sum().item())
    print(int(cudart.cudaHostUnregister(address)), x.is_pinned())
""")


# Host tensors of every origin, and the ways to copy to them. `idle()` returns whether the current
# stream has finished its work; _sleep keeps the stream busy for longer than a step of a test.
_NON_BLOCKING = """
import torch
cudart = torch.cuda.cudart()
count = 1 << 20
d = torch.arange(count, dtype=torch.float32, device='cuda')
total = d.double().sum().item()
def busy():
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
def idle():
    done = torch.cuda.Event()
    done.record()
    return done.query()
def registered():
    x = torch.zeros(count)
    torch.cuda.check_error(cudart.cudaHostRegister(x.data_ptr(), x.nbytes, 0))
    return x
hosts = {
    'made here': torch.zeros(count),
    'from a device': torch.zeros(count, device='cuda').cpu(),
    'by way of a device': torch.zeros(count).cuda().cpu(),
    'pinned, by way of a device': torch.zeros(count).pin_memory().cuda().cpu(),
    'pinned': torch.zeros(count).pin_memory(),
    'registered': registered(),
    'to the host without blocking': torch.zeros(count, device='cuda').to('cpu', non_blocking=True),
}
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("profile", ["discrete", "integrated", "hmm", "coherent"])
def test_only_copies_to_pinned_memory_go_on_when_the_call_returns(
    same_output: Checked, profile: str
) -> None:
    same_output(
        _NON_BLOCKING
        + """
for name, host in hosts.items():
    for attempt in 'first', 'again':
        busy()
        host.copy_(d, non_blocking=True)
        was_idle = idle()
        torch.cuda.synchronize()
        print(name, attempt, was_idle, host.is_pinned(), host.double().sum().item() == total)
""",
        environment={"UVMSIM_PROFILE": profile},
    )


def test_every_way_to_copy_to_ordinary_memory_is_over_when_the_call_returns(
    same_output: Checked,
) -> None:
    same_output(
        _NON_BLOCKING
        + """
host = torch.zeros(2, count)
other = torch.zeros(count)
half = torch.zeros(count, dtype=torch.float64)
wide = torch.zeros(count, 2)
side = torch.cuda.Stream()
def on_a_side_stream():
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host[0].copy_(d, non_blocking=True)
ways = {
    'row': lambda: host[1].copy_(d, non_blocking=True),
    'foreach': lambda: torch._foreach_copy_([other, host[0]], [d, d], non_blocking=True),
    'storage': lambda: other.untyped_storage().copy_(d.untyped_storage(), non_blocking=True),
    'another type': lambda: half.copy_(d, non_blocking=True),
    'with gaps': lambda: wide[:, 1].copy_(d, non_blocking=True),
    'side stream': on_a_side_stream,
}
for name, copy in ways.items():
    busy()
    copy()
    print(name, idle())
for tensor in host[0], host[1], other, half, wide[:, 1]:
    print(tensor.double().sum().item() == total)
"""
    )


def test_a_copy_from_ordinary_memory_is_through_with_its_source_when_the_call_returns(
    simulate: Simulate,
) -> None:
    """torch stages the source. A copy from managed memory reads it until the stream is done."""
    simulate(
        _NON_BLOCKING
        + """
asynchronous = {'pinned', 'registered', 'to the host without blocking'}
for name, host in hosts.items():
    host.add_(1)  # bytes of its own
    copies = (
        lambda: d.copy_(host, non_blocking=True),
        lambda: host.to('cuda', torch.float64, non_blocking=True),
        lambda: host[1:].to('cuda', memory_format=torch.contiguous_format, non_blocking=True),
    )
    host.numpy()  # moves copy
    for copy in copies:
        busy()
        before = torch.cuda.Event()
        before.record()
        copy()
        # A kernel that converts what has arrived may still be at work, but not on the source.
        assert before.query() is (name not in asynchronous), name
""",
    ).check()


def test_host_tensors_from_a_device_are_registered_as_others_are(same_output: Checked) -> None:
    same_output("""
import torch
cudart = torch.cuda.cudart()
tensors = {
    'moved': torch.ones(1 << 20, device='cuda').cpu(),
    'small': torch.ones(1000, device='cuda').cpu(),
    'part': torch.ones(2 << 20, device='cuda')[: 1 << 20].cpu(),
    'pinned, by way of a device': torch.ones(1 << 20).pin_memory().cuda().cpu(),
}
for name, x in tensors.items():
    address, size = x.data_ptr(), x.numel() * 4
    print(name, x.is_pinned(), int(cudart.cudaHostRegister(address, size, 0)), x.is_pinned())
    print(int(cudart.cudaHostRegister(address, size, 0)), x.sum().item())
    print(int(cudart.cudaHostUnregister(address)), x.is_pinned())
pinned = torch.ones(1 << 20).pin_memory()
print(int(cudart.cudaHostRegister(pinned.data_ptr(), pinned.nbytes, 0)), pinned.is_pinned())
""")


def test_who_is_pinned_does_not_depend_on_how_its_memory_was_made(same_output: Checked) -> None:
    same_output("""
import torch
pinned = torch.arange(1 << 20).pin_memory()
back = pinned.cuda().cpu()
print(pinned.is_pinned(), back.is_pinned(), torch.from_numpy(pinned.numpy()).is_pinned())
again = torch.arange(1 << 20).pin_memory().cuda().cpu()
print(again.is_pinned(), again.add_(1).is_pinned(), again.pin_memory().is_pinned())
print(again.pin_memory() is again)
""")


def test_a_move_to_the_host_without_blocking_gives_a_pinned_tensor(same_output: Checked) -> None:
    same_output("""
import torch
for count in 1000, 1 << 20:
    x = torch.arange(count, device='cuda')
    for source in x, x[count // 2:], x.view(-1, 2).t():
        torch.cuda._sleep(50_000_000)
        host = source.to('cpu', non_blocking=True)
        done = torch.cuda.Event(); done.record()
        print(count, host.is_pinned(), host.pin_memory() is host, done.query())
        torch.cuda.synchronize()
        print(host.sum().item(), host.clone().is_pinned(), source.cpu().is_pinned())
        host.add_(1)
        print(host.is_pinned(), host.sum().item(), source.sum().item())
""")


def test_a_blocking_move_returns_when_its_stream_has_done_all_its_work(
    same_output: Checked,
) -> None:
    """Programs use such a move as a barrier, and read clocks around it."""
    same_output(
        _NON_BLOCKING
        + """
sources = {
    **hosts,
    'small': torch.ones(100),
    'part': torch.ones(2 * count)[count:],
    'device': d,
    'device, small': torch.ones(100, device='cuda'),
    'moved there': torch.ones(count).cuda(),
}
side = torch.cuda.Stream()
def move(name, source, way):
    # A copy from managed memory that is not pinned waits, so that its source may be written to.
    for non_blocking in (False, True) if source.is_cuda or source.is_pinned() else (False,):
        busy()
        moved = source.to('cpu' if source.is_cuda else 'cuda', non_blocking=non_blocking)
        print(name, way, non_blocking, idle(), non_blocking or moved.double().sum().item())
for name, source in sources.items():
    move(name, source, 'current stream')
    with torch.cuda.stream(side):
        move(name, source, 'side stream')
    busy()
    source.cpu() if source.is_cuda else source.cuda()
    print(name, idle())
other = d.to('cuda:1')
busy()
d.to('cuda:1')
print('between devices', idle())
""",
        devices=2,
    )


def test_pinned_tensors_of_a_page_and_more_begin_on_a_page_of_the_host(simulate: Simulate) -> None:
    simulate("""
import random, torch
random.seed(5)
live = []
for step in range(400):
    if live and random.random() < 0.45:
        del live[random.randrange(len(live))]
        continue
    size = int(2 ** random.uniform(3, 22))
    if random.random() < 0.5:
        live.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
    else:
        live.append(torch.empty(size, dtype=torch.uint8).pin_memory())
    assert size < 4096 or live[-1].data_ptr() % 4096 == 0, (size, hex(live[-1].data_ptr()))
""").check()
