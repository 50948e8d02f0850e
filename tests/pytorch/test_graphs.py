"""CUDA graphs: what a capture allocates, what keeps it, and what nobody may touch meanwhile."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import MOVES_PRELUDE, Checked

pytestmark = pytest.mark.slow

PRELUDE = MOVES_PRELUDE


def test_a_capture_that_needs_memory_of_the_driver_is_not_disturbed(same_output: Checked) -> None:
    same_output("""
import torch
a = torch.arange(1024.0, device='cuda')
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    big = torch.empty(600 << 20, dtype=torch.uint8, device='cuda')
    scratch = torch.empty(70 << 20, dtype=torch.uint8, pin_memory=True)
    host = torch.empty(64 << 20, dtype=torch.uint8)
    b = a * 2
    big.fill_(3)
a.copy_(torch.arange(1024.0) + 1)
graph.replay()
torch.cuda.synchronize()
print(b.sum().item(), big[-1].item(), host.numel(), scratch.is_pinned())
""")


def test_the_memory_of_a_graph_is_its_own_until_it_goes(same_output: Checked) -> None:
    same_output("""
import torch
a = torch.ones(1 << 20, device='cuda')
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    inside = a + 1
    b = inside * 3
    del inside
print(len([s for s in torch.cuda.memory_snapshot() if s['segment_pool_id'] == graph.pool()]) > 0)
address = b.data_ptr()
others = [torch.zeros(1 << 20, device='cuda') for _ in range(4)]
graph.replay()
print(b.sum().item() == 6 * (1 << 20), [t.sum().item() for t in others])
del b
more = torch.zeros(1 << 20, device='cuda')
print(more.data_ptr() != address)
graph.replay()
torch.cuda.synchronize()
print(more.sum().item())
second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second, pool=graph.pool()):
    c = a * 5
second.replay()
print(c.sum().item() == 5 * (1 << 20), torch.cuda.memory_stats()['num_ooms'])
del graph, second, c, others, more
torch.cuda.empty_cache()
print(torch.cuda.memory_allocated() == a.numel() * 4)
""")


def test_pinned_memory_of_a_capture_is_kept_for_its_replays(same_output: Checked) -> None:
    same_output("""
import torch
device = torch.zeros(1 << 20, device='cuda')
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    staging = torch.empty(1 << 20, pin_memory=True)
    device.copy_(staging, non_blocking=True)
staging.fill_(7)
address = staging.data_ptr()
del staging
later = torch.zeros(1 << 20, pin_memory=True)
print(later.data_ptr() != address)
graph.replay()
torch.cuda.synchronize()
print(device.sum().item() == 7 * (1 << 20))
del graph
""")


UNMANAGED = """
import torch
def unmanaged(count):
    x = torch.empty(count, device='cuda')
    own = getattr(torch.ops.uvmalloc, 'unmanage_memory', None)
    return x if own is None else own(x)
x = torch.ones(1 << 20, device='cuda')
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
"""


def test_unmanaged_memory_is_allocated_in_a_capture_while_events_are_pending(
    same_output: Checked,
) -> None:
    """Torch's own allocator queries no event in a capture."""
    same_output(
        UNMANAGED
        + """
first, second = unmanaged(4 << 20), unmanaged(4 << 20)
torch.cuda.synchronize()
with torch.cuda.stream(side):
    first.add_(1)
    second.add_(1)
first.record_stream(side)
second.record_stream(side)
del first
with torch.cuda.graph(graph):
    y = x * 2
    del second
    z = unmanaged(1 << 20)
    torch.add(y, 1, out=z)
x.fill_(4)
graph.replay()
torch.cuda.synchronize()
print(y.sum().item(), z.sum().item())
"""
    )


@pytest.mark.parametrize("fails", [False, True])
def test_unmanaged_memory_of_a_capture_is_the_graphs(same_output: Checked, fails: bool) -> None:
    same_output(
        f"FAILS = {fails}"
        + UNMANAGED
        + """
if FAILS:
    failed = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(failed, stream=side):
            lost = unmanaged(1 << 20)
            torch.cuda.synchronize()
    except Exception as error:
        print(type(error))
    del failed, lost
with torch.cuda.graph(graph, stream=side):
    inside = unmanaged(1 << 20)
    at = inside.data_ptr()
    torch.mul(x, 2, out=inside)
    y = inside + 1
    del inside
torch.cuda.synchronize()
with torch.cuda.stream(side):
    later = [unmanaged(1 << 20).fill_(5) for _ in range(3)]
    graph.replay()
side.synchronize()
print(y.sum().item(), [each.sum().item() for each in later])
print(at in {each.data_ptr() for each in later})
reserved = torch.cuda.memory_reserved()
del graph, y, later
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved() < reserved)
"""
    )


def test_a_capture_that_fails_leaves_the_allocator_as_it_was(same_output: Checked) -> None:
    same_output("""
import torch
a = torch.ones(1000, device='cuda')
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        b = a + 1
        torch.cuda.synchronize()
except Exception as error:
    print(type(error))
del graph, b
side = torch.cuda.Stream()
x = torch.empty(1 << 20, device='cuda')
with torch.cuda.stream(side):
    x.fill_(1)
x.record_stream(side)
del x
torch.cuda.synchronize()
y = torch.empty(1 << 20, device='cuda')
torch.cuda.empty_cache()
print((a + 1).sum().item())
""")


def test_what_a_graph_uses_keeps_its_address_and_its_contents_to_itself(
    same_output: Checked,
) -> None:
    """A replay reads and writes at captured addresses without any notice."""
    program = """
import torch
SIZE = 1 << 20
host = torch.ones(SIZE)
moved = host.to('cuda')                    # shares with `host` when it is captured
alone = torch.zeros(SIZE, device='cuda')
kept = torch.full((SIZE,), 5.0)
counter = kept.to('cuda')                  # written to inside the graph
part = torch.ones(2 * SIZE)
half = part[:SIZE].to('cuda')
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = moved * 2
    more = alone + 1 + half
    counter.add_(1)
def heads(*tensors):
    torch.cuda.synchronize()
    return [t[7].item() for t in tensors]
graph.replay()
print('at first', heads(doubled, more, counter, kept, host))
moved.fill_(3); half.fill_(4)              # the graph's static inputs
graph.replay()
print('inputs', heads(doubled, more, counter, host, part))
outputs = [doubled.cpu(), more.cpu(), counter.cpu(), moved.cpu(), alone.cpu()]
alone.fill_(7)                             # after it has moved
moved.copy_(torch.full((SIZE,), 9.0))
host.fill_(8)
graph.replay(); graph.replay()
print('outputs', heads(*outputs))
print('again', heads(doubled, more, counter, alone, moved, host, kept))
moved.data_ptr(); alone.data_ptr()
host = host.to('cuda').cpu()
host.add_(1)
second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second, pool=graph.pool()):
    tripled = doubled * 3
copies = [t.cpu() for t in (tripled, doubled)]
moved.fill_(1)
graph.replay(); second.replay()
print('second', heads(tripled, doubled, *copies[1:]), heads(host))
del graph, second
free = alone.cpu()
alone.fill_(2)
print('afterwards', heads(free, alone))
if hasattr(torch.ops.uvmalloc, 'check_invariants'):
    torch.ops.uvmalloc.check_invariants()
"""
    same_output(program)


def test_a_capture_ends_sharing_by_one_copy_and_none_where_nobody_shares(
    checked: Checked,
) -> None:
    run = checked("""
shared, left = torch.ones(1 << 20), torch.ones(1 << 20)
y, z = shared.to('cuda'), left.to('cuda')
del left
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = y + z
assert report()['materializations'] == {'copies': 1, 'bytes': 4 << 20, 'steals': 2}
before = y.data_ptr(), z.data_ptr(), shared.data_ptr()
for t in (y, z, shared):
    t.add_(1)
assert before == (y.data_ptr(), z.data_ptr(), shared.data_ptr())
fresh = torch.ones(1 << 20)
assert fresh.to('cuda').sum().item() == 1 << 20 and copied() == {}
for t in (out, y, shared.to('cuda')):
    t.cpu()
assert copied() == {'exported_pointer': 3}, copied()
""")
    assert run.report["moves"]["total"] == 4


def test_the_copies_that_a_capture_makes_are_there_for_every_stream(checked: Checked) -> None:
    checked("""
x = torch.ones(1 << 20)
y = x.to('cuda')
graph = torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(50_000_000)
    busy = torch.cuda.Event(); busy.record()
    graph.capture_begin()
    out = y * 2
    graph.capture_end()
assert busy.query(), 'the copy was not waited for'
""")
