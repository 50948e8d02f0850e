"""CUDA graphs: what a capture allocates, who keeps it, and what nobody may touch meanwhile."""

from __future__ import annotations

from tests.pytorch.conftest import Simulate
from tests.pytorch.test_memory_tools import same_output


def test_a_capture_that_needs_memory_of_the_driver_is_not_disturbed(simulate: Simulate) -> None:
    same_output(
        simulate,
        """
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
""",
    )


def test_the_memory_of_a_graph_is_its_own_until_it_goes(simulate: Simulate) -> None:
    same_output(
        simulate,
        """
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
""",
    )


def test_pinned_memory_of_a_capture_is_kept_for_its_replays(simulate: Simulate) -> None:
    same_output(
        simulate,
        """
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
""",
    )


def test_a_capture_that_fails_leaves_the_allocator_as_it_was(simulate: Simulate) -> None:
    same_output(
        simulate,
        """
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
""",
    )
