"""What `import uvmalloc` offers to a program, under uvmalloc and without it."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import Checked, Simulate

PRELUDE = "import torch, uvmalloc\n"


def test_residency_follows_moves_and_prefetches(checked: Checked) -> None:
    run = checked("""
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
""")
    assert run.report["copies_by_moves"]["by_reason"] == {}, "asking exports no pointer"


def test_exact_residency_is_the_drivers_answer(checked: Checked) -> None:
    checked("""
size = 8 << 20
torch.empty(1, device='cuda')
x = torch.ones(size, dtype=torch.uint8, device='cuda')
torch.cuda.synchronize()
assert uvmalloc.residency(x, exact=True) == {'device:0': size}
assert uvmalloc.residency(x[5:1005], exact=True) == {'device:0': 1000}
assert uvmalloc.prefetch(x[: size // 2], 'cpu')
torch.cuda.synchronize()
assert uvmalloc.residency(x, exact=True) == {'host': size // 2, 'device:0': size // 2}
# The driver evicts a page that no hint has moved: only the driver knows.
import ctypes
runtime = ctypes.CDLL('libcudart.so.13')
free, total = ctypes.c_size_t(), ctypes.c_size_t()
engine = ctypes.CDLL('libuvmsim.so')
assert engine.uvmsim_set_capacity(0, ctypes.c_size_t(64 << 20)) == 0
y = torch.ones(60 << 20, dtype=torch.uint8, device='cuda')
torch.cuda.synchronize()
assert uvmalloc.residency(x, exact=True).get('device:0', 0) < size // 2
assert uvmalloc.residency(torch.zeros(10), exact=True) == {}, 'from malloc'
""")


def test_exact_residency_needs_a_driver_that_reports_it(simulate: Simulate) -> None:
    simulate(
        PRELUDE
        + REFUSED
        + """
torch.empty(1, device='cuda')
x = torch.ones(8 << 20, dtype=torch.uint8, device='cuda')
refused(lambda: uvmalloc.residency(x, exact=True), RuntimeError, 'from CUDA 13.4 on')
""",
        driver_version="13.0",
    ).check()


def test_a_prefetch_needs_memory_of_ours_and_a_device_that_exists(checked: Checked) -> None:
    checked("""
torch.empty(1, device='cuda')
small = torch.zeros(10)
assert not uvmalloc.prefetch(small, 'cuda') and uvmalloc.residency(small) == {}
large = torch.zeros(1 << 22)
for device, words in (('cuda:1', 'cuda:1 does not exist'), ('meta', 'accepted: cpu, cuda')):
    try:
        uvmalloc.prefetch(large, device)
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(device)
assert uvmalloc.prefetch(large[:0], 'cuda') is False
""")


def test_in_a_region_host_tensors_come_from_malloc(checked: Checked) -> None:
    checked("""
managed = torch.ops.uvmalloc.is_managed
def make(): return torch.zeros(1 << 20)
torch.cuda.init()
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
""")


@pytest.mark.fresh_start
def test_without_uvmalloc_nothing_happens(simulate: Simulate, checked: Checked) -> None:
    checked(
        """
x = torch.zeros(1 << 20)
assert not uvmalloc.enabled()
assert uvmalloc.stats() == {} and uvmalloc.residency(x) == {} and not uvmalloc.prefetch(x, 'cuda')
with uvmalloc.region(managed=False):
    assert torch.zeros(3).sum().item() == 0
""",
        native=True,
    )
    simulate(
        "import uvmalloc\nassert not uvmalloc.enabled() and uvmalloc.stats() == {}\n"
        "import sys; assert 'torch' not in sys.modules"
    ).check()


REFUSED = """
def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert type(error) is kind and all(word in str(error) for word in words), error
    else:
        raise AssertionError('not refused')
"""


def test_devices_that_only_read_keep_copies_of_what_is_read_mostly(checked: Checked) -> None:
    def migrated(body: str) -> int:
        program = """
x = torch.arange(8 << 20, dtype=torch.float32)
there = [x.to(f'cuda:{i}') for i in (0, 1)]
expected = x.double().sum().item()
def read():
    for y in there * 3:
        assert y.double().sum().item() == expected
"""
        run = checked(program + body, devices=2)
        return run.sim["migrated_bytes_between_devices"]

    size_bytes = 32 << 20
    assert migrated("read()") >= 5 * size_bytes, "it goes to and fro"
    assert migrated("assert uvmalloc.advise(there[0], read_mostly=True); read()") == 2 * size_bytes
    assert (
        migrated(
            "assert uvmalloc.advise(x, read_mostly=True); read();"
            "assert uvmalloc.advise(x, read_mostly=False); read()"
        )
        >= 5 * size_bytes
    )


def test_without_a_device_nothing_is_enabled(checked: Checked) -> None:
    checked(
        """
assert not torch.cuda.is_available()
x = torch.ones(1 << 20)
with uvmalloc.region(policy='driver', budget='64MiB'):
    y = torch.ones(1 << 20)
assert not torch.ops.uvmalloc.is_managed(x) and not uvmalloc.enabled()
assert not uvmalloc.advise(x, preferred='cpu') and not uvmalloc.prefetch(x, 'cpu')
assert uvmalloc.residency(x) == {} and not uvmalloc.stats()['active']
""",
        devices=0,
    )


def test_advice_reaches_the_driver_once_and_ends_with_the_tensor(checked: Checked) -> None:
    checked(
        REFUSED
        + """
def sent(): return uvmalloc.stats()['advice']['sent']
torch.empty(1, device='cuda')
x = torch.zeros(8 << 20, dtype=torch.uint8, device='cuda')
before = sent()
assert uvmalloc.advise(x, preferred='cpu') and sent() == before + 1
assert uvmalloc.advise(x[5:], accessed_by='cuda:1') and sent() == before + 2
assert uvmalloc.advise(x, read_mostly=True) and sent() == before + 3
assert x.is_cuda and x.sum().item() == 0
before = sent()
del x
assert sent() == before + 2, 'the next user of the pages has the advice of its kind'
x = torch.zeros(8 << 20, dtype=torch.uint8, device='cuda')
del x
assert sent() == before + 2
y = torch.zeros(1 << 22)
before = sent()
assert uvmalloc.advise(y, preferred='cpu') and sent() == before, 'so it is at first'
assert uvmalloc.advise(y, preferred='cuda:1', accessed_by='cuda:1') and sent() == before + 2
assert uvmalloc.advise(y, preferred='cuda:1') and sent() == before + 2, 'in force already'
for value, more in ((False, 0), (True, 1), (True, 1), (False, 2), (False, 2)):
    assert uvmalloc.advise(y, read_mostly=value) and sent() == before + 2 + more, value
before += 2
with uvmalloc.region(policy='driver'):
    assert uvmalloc.advise(y, preferred='cuda:0') and sent() == before + 2
assert not uvmalloc.advise(torch.zeros(10), preferred='cpu'), 'not ours'
assert not uvmalloc.advise(torch.zeros(10, device='cuda'), preferred='cpu'), 'shares its page'
refused(lambda: uvmalloc.advise(y), ValueError, 'neither')
refused(lambda: uvmalloc.advise(y, read_mostly=1), TypeError, 'read_mostly', 'bool', 'int')
refused(
    lambda: uvmalloc.advise(y, preferred='cuda:7'), RuntimeError,
    'cuda:7 does not exist', 'devices: 2',
)
refused(lambda: uvmalloc.advise(y, accessed_by='meta'), RuntimeError, 'accepted: cpu, cuda')
torch.ops.uvmalloc.check_invariants()
""",
        devices=2,
    )


def test_a_region_keeps_its_budget_and_nothing_more(checked: Checked) -> None:
    checked(
        REFUSED
        + """
MiB = 1 << 20
def make(mib, device='cuda'): return torch.empty(mib * MiB, dtype=torch.uint8, device=device)
outside = make(64)
for device in ('cuda', 'cpu'):
    with uvmalloc.region(budget='16MiB'):
        kept = make(10, device)
        refused(lambda: make(7, device), torch.OutOfMemoryError, 'budget is 16.00 MiB', '10.00 MiB')
        fits = make(6, device)
        del outside, fits
        again = make(6, device)
        outside = None
    more = make(64, device)
    outside = make(64)
    del kept, again, more
with uvmalloc.region(budget=16 * MiB):
    with uvmalloc.region(budget='1GiB'):
        inner = make(10)
        refused(lambda: make(7), torch.OutOfMemoryError, 'budget is 16.00 MiB')
    refused(lambda: make(7), torch.OutOfMemoryError, 'budget is 16.00 MiB')
    with uvmalloc.region(budget='2MiB'):
        refused(lambda: make(3), torch.OutOfMemoryError, 'budget is 2.00 MiB')
    del inner
    pinned = torch.empty(15 * MiB, dtype=torch.uint8, pin_memory=True)
    refused(lambda: make(2), torch.OutOfMemoryError, 'budget is 16.00 MiB')
    assert make(0).numel() == 0
try:
    with uvmalloc.region(budget='1MiB'):
        raise KeyError
except KeyError:
    make(64)
torch.ops.uvmalloc.check_invariants()
"""
    )


def test_a_region_holds_in_its_backward_passes_and_in_no_other_thread(checked: Checked) -> None:
    checked(
        REFUSED
        + """
import threading
x = torch.ones(1 << 22, device='cuda', requires_grad=True)
loss = (x * 2).sum()
with uvmalloc.region(budget='1MiB'):
    refused(loss.backward, torch.OutOfMemoryError, "region's budget is 1024.00 KiB")
    done = []
    thread = threading.Thread(target=lambda: done.append(torch.ones(1 << 22, device='cuda')))
    thread.start()
    thread.join()
    assert len(done) == 1
    with torch.autograd.profiler.profile():
        refused(lambda: torch.ones(1 << 22, device='cuda'), torch.OutOfMemoryError, 'region')
(x * 2).sum().backward()
profiler = torch.autograd.profiler.profile()
with uvmalloc.region(budget='1MiB'):
    profiler.__enter__()
profiler.__exit__(None, None, None)
assert torch.ones(1 << 22, device='cuda').sum().item() == 1 << 22
__import__('os')._exit(0)
"""
    )


def test_a_region_has_a_policy_of_its_own(checked: Checked) -> None:
    checked("""
import json
def figures():
    now = uvmalloc.stats()
    reasons = now['copies_by_moves']['by_reason']
    return now['prefetches']['sent'], reasons.get('mode', {'count': 0})['count']
torch.empty(1, device='cuda')
def move(policy):
    before = figures()
    with uvmalloc.region(policy=policy):
        torch.zeros(1 << 21).to('cuda')
    return tuple(b - a for a, b in zip(before, figures()))
assert move(None) == (1, 0), move(None)
assert move('driver') == (0, 0)
assert move('off')[1] == 1
with uvmalloc.region(policy='off'):
    assert move('auto')[1] == 0 and move(None)[1] == 1
assert move(None)[1] == 0
""")


def test_what_a_region_cannot_be_is_refused_with_and_without_uvmalloc(simulate: Simulate) -> None:
    program = (
        PRELUDE
        + REFUSED
        + """
def enter(**options):
    with uvmalloc.region(**options):
        pass
refused(lambda: enter(policy='magic'), ValueError, "'magic'", 'accepted: auto, driver, off')
for budget in ('plenty', 0, -1, ''):
    refused(lambda: enter(budget=budget), ValueError, repr(budget), 'accepted')
for budget in (True, 1.5):
    refused(lambda: enter(budget=budget), TypeError, type(budget).__name__, 'accepted')
with uvmalloc.region(policy='driver', budget='1GiB', managed=False):
    assert torch.ones(3).cuda().sum().item() == 3
assert not uvmalloc.advise(torch.ones(3), preferred='cpu')
"""
    )
    for native in (False, True):
        simulate(program, native=native).check()
