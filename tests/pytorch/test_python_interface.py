"""What `import uvmalloc` offers to a program, under uvmalloc and without it."""

from __future__ import annotations

from tests.pytorch.conftest import Simulate

HEAD = "import torch, uvmalloc\n"


def test_residency_follows_moves_and_prefetches(simulate: Simulate) -> None:
    run = simulate(
        HEAD
        + """
size = 8 << 20
torch.empty(1, device='cuda')
x = torch.zeros(size, dtype=torch.uint8)
assert uvmalloc.enabled()
y = x.to('cuda'); del x
assert uvmalloc.residency(y) == {'device:0': size}, uvmalloc.residency(y)
assert uvmalloc.prefetch(y, 'cpu')
assert uvmalloc.residency(y) == {'host': size}, uvmalloc.residency(y)
assert y.is_cuda and y.sum().item() == 0
assert uvmalloc.prefetch(y[: size // 2], 'cuda:0')
assert uvmalloc.residency(y) == {'host': size // 2, 'device:0': size // 2}
assert uvmalloc.prefetch(y, torch.device('cuda')), 'the current device'
assert uvmalloc.residency(y) == {'device:0': size}
moves = uvmalloc.stats()['moves']['total']
assert y.cpu().numpy().sum() == 0 and moves == 1
"""
    ).check()
    assert run.report["copies_by_moves"]["by_reason"] == {}, "asking exports no pointer"


def test_a_prefetch_needs_memory_of_ours_and_a_device_that_exists(simulate: Simulate) -> None:
    simulate(
        HEAD
        + """
torch.empty(1, device='cuda')
small = torch.zeros(10)
assert not uvmalloc.prefetch(small, 'cuda') and uvmalloc.residency(small) == {}
large = torch.zeros(1 << 22)
for device, words in (('cuda:1', 'there is no cuda:1'), ('meta', 'accepted: cpu, cuda')):
    try:
        uvmalloc.prefetch(large, device)
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(device)
assert uvmalloc.prefetch(large[:0], 'cuda') is False
"""
    ).check()


def test_in_a_region_host_tensors_come_from_malloc(simulate: Simulate) -> None:
    simulate(
        HEAD
        + """
managed = torch.ops.uvmalloc.is_managed
def make(): return torch.zeros(1 << 20)
with uvmalloc.region(managed=False):
    assert not managed(make())
    with uvmalloc.region(managed=True):
        assert managed(make())
    kept = make()
    assert not managed(kept)
assert managed(make())
try:
    with uvmalloc.region(managed=False):
        raise KeyError
except KeyError:
    pass
assert managed(make())
assert kept.to('cuda').sum().item() == 0
"""
    ).check()


def test_without_uvmalloc_nothing_happens(simulate: Simulate) -> None:
    simulate(
        HEAD
        + """
x = torch.zeros(1 << 20)
assert not uvmalloc.enabled()
assert uvmalloc.stats() == {} and uvmalloc.residency(x) == {} and not uvmalloc.prefetch(x, 'cuda')
with uvmalloc.region(managed=False):
    assert torch.zeros(3).sum().item() == 0
""",
        native=True,
    ).check()
    simulate(
        "import uvmalloc\nassert not uvmalloc.enabled() and uvmalloc.stats() == {}\n"
        "import sys; assert 'torch' not in sys.modules"
    ).check()
