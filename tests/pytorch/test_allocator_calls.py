"""Functions of torch's device allocator that torch and libraries call in C++ only."""

from __future__ import annotations

import pytest
from uvmalloc.libraries import Libraries

from tests.pytorch.conftest import TORCH_MINOR, Checked, Simulate

PRELUDE = """
import ctypes, sys, threading, torch
calls = ctypes.CDLL(sys.argv[1])
torch.cuda.init()
MiB = 1 << 20
def tensor(mebibytes, device='cuda'):
    return torch.empty(mebibytes * MiB, dtype=torch.uint8, device=device)
def fits(mebibytes):
    try:
        return tensor(mebibytes).numel() > 0
    except torch.OutOfMemoryError as error:
        assert str(error).startswith('CUDA out of memory. '), error
        return False
def counts():
    stats = torch.cuda.memory_stats()
    return {name: stats.get(name) for name in ('num_ooms', 'num_oom_rejections')}
"""

PRESSURE = """
@ctypes.CFUNCTYPE(ctypes.c_bool)
def give_back():
    calls_seen.append(len(held))
    held.clear()
    return gives
calls_seen, held, gives = [], [], True
torch.cuda.set_per_process_memory_fraction(0.25)
"""


@pytest.fixture
def same_output(same_output: Checked, libraries: Libraries) -> Checked:
    library = libraries.folder / "tests" / f"liballocator_calls_2_{TORCH_MINOR}.so"
    return lambda program, **options: same_output(program, str(library), **options)


def test_who_can_give_memory_back_is_called_before_a_request_fails(same_output: Checked) -> None:
    run = same_output(
        PRESSURE
        + """
held.append(tensor(150))
calls.on_memory_pressure(give_back)
print(fits(200), calls_seen)
kept = tensor(100)
print(fits(200), calls_seen)
del kept
gives = False
held.append(tensor(150))
calls_seen.clear()
print(fits(200), calls_seen)
print(counts())
""",
        capacity="1GiB",
    )
    assert run.stdout.startswith("True [1]\nFalse [1, 0]\nTrue [1]\n")


REJECTION = """
@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
def rejected(*figures):
    seen.append(('rejected', *figures))
    reported.set()  # torch's own allocator reports in a thread
seen, reported = [], threading.Event()
attach = calls.on_oom_rejection
attach.restype = ctypes.c_bool
known = attach(rejected)
torch._C._cuda_attach_out_of_memory_observer(lambda *figures: seen.append(('oom', *figures)))
held = tensor(301)
"""


def test_observers_of_memory_errors_get_the_figures(same_output: Checked) -> None:
    run = same_output(
        REJECTION
        + """
torch.cuda.set_per_process_memory_fraction(0.5)
print(fits(400), seen)
beside = torch.empty(1 << 20, dtype=torch.uint8, device='cuda')  # here beside the first
small = torch.empty(7, device='cuda')
print(fits(213), seen[1:], counts()['num_ooms'])
torch.cuda.reset_accumulated_memory_stats()
print(counts()['num_ooms'])
""",
        capacity="1GiB",
    )
    first, *_ = run.stdout.splitlines()
    free = (1024 - 16 - 302) << 20  # the context takes 16 MiB
    assert first == f"False [('oom', 0, {400 << 20}, {512 << 20}, {free})]"


def test_what_the_program_wants_rejected_is_reported_as_rejected(same_output: Checked) -> None:
    run = same_output(
        REJECTION
        + """
print(known, counts())
if known:
    torch._C._accelerator_setAllocatorSettings('throw_on_cudamalloc_oom:True')
    print(fits(800), reported.wait(30), seen, counts())
    print(torch.cuda.memory_reserved() // MiB)
    torch.cuda.set_per_process_memory_fraction(0.5)
    print(fits(400), seen[1:], counts())
    torch.cuda.reset_accumulated_memory_stats()
    print(counts())
""",
        capacity="1GiB",
        budget="1GiB",
    )
    # Torch 2.11 has neither the setting nor the observers.
    figures = f"('rejected', 0, {800 << 20}, {302 << 20}, {1 << 30})"
    assert (figures in run.stdout) == run.stdout.startswith("True ")


BETWEEN = """
from ctypes import c_bool, c_int, c_size_t, c_void_p
calls.enable_peer_access.argtypes = (c_int, c_int)
calls.copy_between.argtypes = (c_void_p, c_int, c_void_p, c_int, c_size_t, c_void_p, c_bool)
cuda = ctypes.CDLL('libcudart.so.13')
def states():
    seen = []
    for device, peer in ((0, 1), (1, 0), (0, 2)):
        with torch.cuda.device(device):
            answer = cuda.cudaDeviceDisablePeerAccess(peer)
            if answer == 0:
                assert cuda.cudaDeviceEnablePeerAccess(peer, 0) == 0
        cuda.cudaGetLastError()
        seen.append(answer)
    return seen
"""


def test_devices_are_made_peers_once_and_one_way(same_output: Checked) -> None:
    same_output(
        BETWEEN
        + """
print([[torch.cuda.can_device_access_peer(i, j) for j in range(3) if i != j] for i in range(3)])
print(states())
calls.enable_peer_access(0, 1)
print(states())
calls.enable_peer_access(0, 1)
print(cuda.cudaPeekAtLastError(), states(), torch.cuda.current_device())
x = torch.arange(12 * MiB, device='cuda:1').view(4, -1)[:, 1::2].t()
y = torch.empty(x.shape, dtype=x.dtype, device='cuda:0')
y.copy_(x)  # a kernel of one device that reads the other's memory
print(torch.equal(y.cpu(), x.cpu()), states())
""",
        devices=3,
    )


def test_copies_between_devices_are_ordered_on_their_stream(same_output: Checked) -> None:
    same_output(
        BETWEEN
        + """
source = torch.arange(MiB, device='cuda:0')
side = torch.cuda.Stream(1)
for peers in (False, True):
    for begin, end in ((0, MiB), (3, 5), (7, 7)):
        target = torch.full((MiB,), -1, device='cuda:1')
        torch.cuda.synchronize(1)
        with torch.cuda.device(1):
            answer = calls.copy_between(
                target[begin:].data_ptr(), 1, source[begin:].data_ptr(), 0, (end - begin) * 8,
                side.cuda_stream, peers,
            )
        print(answer, side.query())
        side.synchronize()
        expected = torch.full((MiB,), -1)
        expected[begin:end] = torch.arange(begin, end)
        print(torch.equal(target.cpu(), expected))
back = torch.empty(MiB, dtype=torch.int64, device='cuda:0')
print(calls.copy_between(back.data_ptr(), 0, target.data_ptr(), 1, 8 * MiB, None, True))
print(torch.equal(back.cpu(), target.cpu()))
print(calls.copy_between(back.data_ptr(), 0, target.data_ptr(), 1, 1 << 50, None, True))
""",
        devices=2,
    )


def test_copies_reach_memory_of_torchs_own_allocator_on_another_device(
    simulate: Simulate, libraries: Libraries
) -> None:
    library = libraries.folder / "tests" / f"liballocator_calls_2_{TORCH_MINOR}.so"
    simulate(
        PRELUDE
        + BETWEEN
        + """
def made(device, managed):
    x = torch.arange(MiB, device=device)
    x = x if managed else torch.ops.uvmalloc.unmanage_memory(x)
    assert torch.ops.uvmalloc.is_managed(x) == managed
    return x
for managed in ((True, False), (False, True), (False, False)):
    for peers in (False, True):
        source, target = (made(f'cuda:{i}', managed[i]) for i in (0, 1))
        target.zero_()
        address = (target.data_ptr(), 1, source.data_ptr(), 0)
        assert calls.copy_between(*address, 8 * MiB, None, peers) == 0
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        assert torch.equal(target.cpu(), source.cpu())
        strided = source[::3].to('cuda:1')
        assert torch.equal(strided.cpu(), source.cpu()[::3])
""",
        str(library),
        devices=2,
    ).check()


def test_a_block_at_a_given_address_is_one_that_was_freed_there(same_output: Checked) -> None:
    run = same_output("""
def allocate_at(size_bytes, address):
    why = ctypes.create_string_buffer(512)
    size, most = ctypes.c_size_t(size_bytes), ctypes.c_size_t(512)
    made = calls.allocate_with_address(size, ctypes.c_void_p(address), why, most)
    print(made, why.value.decode().replace(f'{address:#x}', 'ADDRESS'))
kept, freed = tensor(4), tensor(4)
address = freed.data_ptr()
del freed
allocate_at(4 * MiB, address)
allocate_at(4 * MiB, address)  # the block was freed again
allocate_at(4 * MiB, kept.data_ptr())
allocate_at(4 * MiB, address + (1 << 30))
print(torch.cuda.memory_allocated() == 4 * MiB)
""")
    refused = "0 Could not allocate CUDA storage at exact address ADDRESS\n"
    made = f"1 \n1 \n{refused}{refused}" if TORCH_MINOR >= 15 else "-1 \n" * 4
    assert run.stdout == made + "True\n"
