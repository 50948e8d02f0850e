"""Out-of-memory errors begin with the words that programs look for."""

from __future__ import annotations

from tests.pytorch.conftest import Simulate

ERRORS = """
import torch, uvmalloc
from accelerate.utils.memory import should_reduce_batch_size
MiB = 1 << 20
KINDS = {'device': {'device': 'cuda'}, 'pinned': {'pin_memory': True}, 'host': {}}
torch.cuda.init()
def error_of(kind, mebibytes):
    try:
        torch.empty(mebibytes * MiB, dtype=torch.uint8, **KINDS[kind])
    except RuntimeError as error:
        assert isinstance(error, torch.OutOfMemoryError), type(error)
        return error
def check(kind, error):
    text = str(error)
    words = {
        'device': 'CUDA out of memory. Tried to allocate 96.00 MiB.',
        'pinned': 'CUDA out of memory. Tried to allocate 96.00 MiB of pinned memory '
                  '(CUDA error: out of memory).',
        'host': "DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                f'{96 * MiB} bytes. Error code 12 (Cannot allocate memory).',
    }[kind]
    assert text.startswith(words), text
    assert should_reduce_batch_size(error), text
    return text
"""


def test_every_error_of_memory_is_one_that_accelerate_knows(simulate: Simulate) -> None:
    run = simulate(
        ERRORS
        + """
for kind in KINDS:
    text = check(kind, error_of(kind, 96))
    assert 'budget of 64 MiB' in text and 'UVMALLOC_BUDGET' in text, text
for kind in KINDS:
    with uvmalloc.region(budget='32MiB'):
        text = check(kind, error_of(kind, 96))
    assert "The region's budget is 32.00 MiB" in text, text
""",
        budget="64MiB",
    ).check()
    assert run.report["out_of_memory"] == 3


def test_a_batch_size_is_found_whichever_memory_runs_out(simulate: Simulate) -> None:
    run = simulate(
        ERRORS
        + """
from accelerate import find_executable_batch_size
for kind in KINDS:
    @find_executable_batch_size(starting_batch_size=128)
    def train(batch_size):
        torch.empty(batch_size * MiB, dtype=torch.uint8, **KINDS[kind])
        return batch_size
    size = train()
    print(kind, size <= 64, size > 32)
""",
        budget="64MiB",
    ).check()
    assert run.stdout == "device True True\npinned True True\nhost True True\n"


FULL_HOST = """
import torch
kept = []
try:
    for _ in range(4):
        kept.append(torch.ones(16 << 20, device="cuda"))
        torch.cuda.synchronize()
except torch.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
"""


def test_an_error_says_that_the_host_may_be_full(simulate: Simulate) -> None:
    run = simulate(FULL_HOST, capacity="96MiB", environment={"UVMSIM_HOST_MEMORY": "4MiB"}).check()
    assert "The device or the host has no room left for the managed memory" in run.stdout


def test_small_allocations_that_fill_the_device_leave_room_to_read_scalars(
    simulate: Simulate,
) -> None:
    simulate(
        """
import io, torch
scalar = torch.full((), 3.0, device='cuda', requires_grad=True)
vector = torch.arange(8, device='cuda')
large = torch.full((1 << 20,), 2.0, device='cuda')
kept, size = [], 1 << 26
while size >= 128:
    try:
        kept.append(torch.empty(size, dtype=torch.uint8, device='cuda'))
    except torch.OutOfMemoryError:
        size //= 4
for _ in range(3):
    assert scalar.item() == float(scalar) == 3.0 and bool(scalar)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 6, 7] and vector.cpu().sum().item() == 28
    assert repr(vector) == "tensor([0, 1, 2, 3, 4, 5, 6, 7], device='cuda:0')"
    assert vector.to('cpu', non_blocking=True).is_pinned()
    assert torch.empty(10, pin_memory=True).shape == (10,)
    assert large.cpu()[5].item() == 2.0
    saved = io.BytesIO()
    torch.save({'vector': vector, 'large': large}, saved)
    # What a caller does with the error: it gives cached memory back, and reads on.
    torch.cuda.empty_cache()
del kept
assert (large + 1).sum().item() == 3 << 20
torch.ops.uvmalloc.check_invariants()
""",
        budget="128MiB",
    ).check()
