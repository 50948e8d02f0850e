"""uvmalloc refuses what torch refuses, with the same kind of error and the same words."""

from __future__ import annotations

from tests.pytorch.conftest import Simulate

PROGRAM = """
import atexit, io, os, sys, weakref
import torch

def outcome(name, call):
    try:
        result = call()
    except Exception as error:
        kinds = ' '.join(kind.__name__ for kind in type(error).__mro__)
        print(name, '|', kinds, '|', str(error).splitlines()[0])
    else:
        print(name, '|', result if isinstance(result, (float, bool, tuple)) else 'fine')

count = 1 << 20
host = torch.ones(count)
card = torch.ones(count, device='cuda')
moved = host.to('cuda')
tensors = {'host': host, 'card': card, 'moved': moved, 'small': host[:3]}

for name, x in tensors.items():
    for device in ('cuda:7', 'cuda:-1', 'cuda:127', 'xpu', 'nonsense', 99):
        outcome(f'{name} to {device}', lambda: x.to(device))
    for device in ('cuda', 'cpu'):
        def emptied():
            y = x.clone()
            y.untyped_storage().resize_(0)
            return y.to(device)
        outcome(f'{name}, emptied, to {device}', emptied)
    there = 'cpu' if x.is_cuda else 'cuda'
    def shared_then_emptied():
        y = x.clone()
        z = y.to(there)
        y.untyped_storage().resize_(0)
        return float(z.sum()), y.untyped_storage().nbytes() == 0
    outcome(f'{name}, moved, then emptied', shared_then_emptied)
    def refilled():
        y = x.clone()
        z = y.to(there)
        y.untyped_storage().resize_(0)
        y.untyped_storage().resize_(4 * count)
        y.fill_(3)
        return float(z.sum()), float(y.sum()), float(y.to(there).sum())
    outcome(f'{name}, moved, emptied and filled again', refilled)
outcome('empty on a device that is not there', lambda: torch.empty(count, device='cuda:7'))

def captured(call):
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        call()
for name, call in (
    ('host to card', lambda: host.to('cuda')),
    ('card to host', lambda: card.cpu()),
    ('item', lambda: card[0].item()),
    ('device that is not there', lambda: card.to('cuda:7')),
):
    outcome(f'captured: {name}', lambda: captured(call))
    outcome('afterwards', lambda: torch.ones(3, device='cuda').sum().item())

def in_child(name, call):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        outcome(f'in a forked child: {name}', call)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, name
in_child('host to card', lambda: host.to('cuda'))
in_child('small to card', lambda: torch.ones(3).to('cuda'))
in_child('cuda()', lambda: host.cuda())
in_child('empty', lambda: torch.empty(3, device='cuda'))
in_child('moved to host', lambda: moved.cpu())
in_child('card to host', lambda: card.cpu())
in_child('card + 1', lambda: card + 1)
in_child('pin_memory', lambda: host.pin_memory())
in_child('stream', lambda: torch.cuda.Stream())
in_child('synchronize', lambda: torch.cuda.synchronize())
in_child('module', lambda: torch.nn.Linear(3, 3).cuda())
in_child('share_memory_', lambda: host.share_memory_().is_shared())
in_child('write', lambda: float(host.add_(1).sum()))
in_child('save', lambda: torch.save(host, io.BytesIO()))

class Last:
    def __del__(self):
        outcome('in a destructor', lambda: float(host.to('cuda').sum()))
last = Last()
last.itself = last
atexit.register(outcome, 'at exit', lambda: float(torch.ones(count).to('cuda').sum()))
atexit.register(outcome, 'at exit, wrong', lambda: torch.ones(count).to('cuda:7'))
atexit.register(outcome, 'at exit, of before', lambda: float(card.cpu().sum()))
weakref.finalize(card, outcome, 'finalised', lambda: float(torch.ones(count).to('cuda').sum()))
"""


def test_bad_input_is_refused_as_torch_refuses_it(simulate: Simulate) -> None:
    """Devices that do not exist, emptied storages, captures, forked children, and exit."""
    native = simulate(PROGRAM, native=True, timeout_seconds=150).check()
    managed = simulate(PROGRAM, timeout_seconds=150).check()
    assert managed.stdout == native.stdout
    assert "Cannot re-initialize CUDA in forked subprocess" in native.stdout
    assert managed.report["moves"]["total"] > 0
