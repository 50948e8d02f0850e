"""More than one process: workers that are not forked, tensors sent elsewhere, other libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import Libraries

from tests.pytorch.conftest import Simulate

WORKERS = """
import sys
import torch
import torch.multiprocessing as multiprocessing
from torch.utils.data import DataLoader, TensorDataset

def double(rank, shared, queue):
    assert torch.ops.uvmalloc.is_managed(torch.ones(1 << 20).to('cuda'))
    shared.mul_(2)
    queue.put(shared.to('cuda').sum().item())

if __name__ == '__main__':
    data = torch.ones(1024, 1024)
    assert data.to('cuda').sum().item() == 1 << 20
    for context in ('spawn', 'forkserver'):
        loader = DataLoader(TensorDataset(data), batch_size=512, num_workers=1,
                            multiprocessing_context=context)
        assert sum(batch.to('cuda').sum().item() for batch, in loader) == 1 << 20, context
    assert data.is_shared() and not torch.ops.uvmalloc.is_managed(data)
    shared = torch.ones(1 << 20)
    card = shared.to('cuda')
    queue = multiprocessing.get_context('spawn').SimpleQueue()
    multiprocessing.spawn(double, args=(shared, queue), nprocs=1)
    assert queue.get() == 2 << 20 and shared.sum().item() == 2 << 20
    assert card.sum().item() == 1 << 20, 'it has been moved before'
    torch.ops.uvmalloc.check_invariants()
"""


def test_spawned_and_served_workers_share_host_tensors_and_use_the_device(
    simulate: Simulate, tmp_path: Path
) -> None:
    program = tmp_path / "workers.py"
    program.write_text(WORKERS)
    run = simulate(program, timeout_seconds=150).check()
    assert run.report["forks"]["copied_bytes"] == 0, "neither way copies live host tensors"


SENT = """
import torch
import torch.multiprocessing as multiprocessing

def produce(queue, done):
    queue.put(torch.arange(1000, device='cuda'))
    done.wait()

if __name__ == '__main__':
    context = multiprocessing.get_context('spawn')
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=produce, args=(queue, done))
    child.start()
    received = queue.get(timeout=100)
    received.mul_(2)
    print(received.device, received.sum().item())
    del received
    done.set()
    child.join()
    print(child.exitcode)
"""


def test_the_simulated_device_sends_tensors_of_torchs_own_allocator(
    simulate: Simulate, tmp_path: Path
) -> None:
    program = tmp_path / "sent.py"
    program.write_text(SENT)
    run = simulate(program, native=True, timeout_seconds=150).check()
    assert run.stdout == "cuda:0 999000\n0\n", run.stderr


def test_a_device_tensor_sent_to_another_process_says_what_to_do_instead(
    simulate: Simulate,
) -> None:
    """`share_memory_` itself does nothing to a device's tensor, with or without uvmalloc."""
    run = simulate("""
import torch
import torch.multiprocessing as multiprocessing
from multiprocessing.reduction import ForkingPickler

def refused(send, tensor):
    try:
        send(tensor)
    except NotImplementedError as error:
        assert 'send tensor.cpu()' in str(error), error
        assert 'PYTORCH_ENABLE_UNIFIED_MEMORY=0' in str(error), error
    else:
        raise AssertionError('silently accepted')

context = multiprocessing.get_context('spawn')
tensors = [torch.ones(1 << 20, device='cuda'), torch.ones(1 << 20).to('cuda'),
           torch.ones(3, device='cuda'), torch.nn.Parameter(torch.ones(3, device='cuda'))]
for tensor in tensors:
    assert tensor.share_memory_().is_shared()
    refused(ForkingPickler.dumps, tensor)
    refused(context.SimpleQueue().put, tensor)
    refused(context.Pipe()[1].send, tensor)
    refused(lambda tensor: tensor.untyped_storage()._share_cuda_(), tensor)
assert [tensor.sum().item() for tensor in tensors] == [1 << 20, 1 << 20, 3, 3]
""").check()
    assert run.stderr == ""


PUT = """
import collections, dataclasses, sys
import torch
import torch.multiprocessing as multiprocessing

@dataclasses.dataclass
class Batch:
    tensors: list

class Kept:  # says itself what is pickled
    def __init__(self, tensor): self.tensor = tensor
    def __getstate__(self): return {'tensor': self.tensor}

class Moved(Kept):
    def __getstate__(self): return {'tensor': self.tensor.cpu()}

tensor = lambda: torch.arange(1000, device='cuda')
SENT = {
    'tensor': tensor,
    'parameter': lambda: torch.nn.Parameter(tensor().float()),
    'nested': lambda: (1, {'a': [tensor()]}),
    'state': lambda: torch.nn.Linear(4, 4, device='cuda').state_dict(),
    'module': lambda: torch.nn.Linear(4, 4, device='cuda'),
    'object': lambda: Batch([torch.ones(2), tensor()]),
    'kept': lambda: Kept(tensor()),
}

def produce(queue, received):
    for name, make in SENT.items():
        try:
            queue.put(make())
            sys.stdout.write(f'put {name}\\n')
        except NotImplementedError as error:
            assert 'send tensor.cpu()' in str(error), error
            sys.stdout.write(f'refused {name}\\n')
    queue.put(Moved(tensor()))
    received.wait()

if __name__ == '__main__':
    context = multiprocessing.get_context('spawn')
    queue, received = getattr(context, sys.argv[1])(), context.Event()
    child = context.Process(target=produce, args=(queue, received), daemon=True)
    child.start()
    for name in SENT:
        try:
            sys.stdout.write(f'{name} {queue.get()}\\n')
        except NotImplementedError as error:
            assert 'send tensor.cpu()' in str(error), error
            sys.stdout.write('error\\n')
    print(queue.get().tensor.sum().item())
    received.set()
    child.join()
    print(child.exitcode)
"""


@pytest.mark.fresh_start
@pytest.mark.parametrize("queue", ["Queue", "JoinableQueue"])
def test_a_queue_refuses_a_device_tensor_on_both_sides_at_once(
    simulate: Simulate, tmp_path: Path, queue: str
) -> None:
    program = tmp_path / "put.py"
    program.write_text(PUT)
    run = simulate(program, queue).check()
    refused = {"tensor", "parameter", "nested", "state", "module", "object"}
    lines = run.stdout.splitlines()
    assert {line for line in lines if line.startswith("refused")} == {
        f"refused {n}" for n in refused
    }
    assert lines.count("error") == len(refused) + 1, "also where pickling alone finds the tensor"
    assert "put kept" in lines and run.stderr.count("send tensor.cpu()") == 1
    assert lines[-2:] == ["499500", "0"], "what was put after a refused object comes after it"


@pytest.mark.fresh_start
def test_an_executor_handles_a_refused_tensor_itself(simulate: Simulate, tmp_path: Path) -> None:
    program = tmp_path / "executor.py"
    program.write_text("""
import concurrent.futures, multiprocessing, torch
if __name__ == '__main__':
    context = multiprocessing.get_context('spawn')
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        for sent in (torch.ones(3, device='cuda'), torch.ones(3)):
            try:
                print(executor.submit(torch.sum, sent).result().item())
            except NotImplementedError as error:
                assert 'send tensor.cpu()' in str(error), error
                print('refused')
""")
    assert simulate(program).check().stdout == "refused\n3.0\n"


NCCL = """
#include <stddef.h>
int cudaMalloc(void** out, size_t size_bytes);
int cudaPointerGetAttributes(void* out, const void* address);
void* allocate_buffer(void) {
  void* buffer = 0;
  return cudaMalloc(&buffer, 1 << 20) == 0 ? buffer : 0;
}
int kind_of(const void* address) {
  union { int type; long whole[16]; } attributes;
  return cudaPointerGetAttributes(&attributes, address) == 0 ? attributes.type : -1;
}
"""


def test_memory_that_other_libraries_ask_the_driver_for_stays_the_drivers(
    simulate: Simulate, libraries: Libraries, tmp_path: Path
) -> None:
    """NCCL, NVSHMEM, UCX and MPI register this memory, which managed memory does not allow."""
    source = tmp_path / "nccl.c"
    source.write_text(NCCL)
    library = tmp_path / "libnccl.so.2"
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    runtime = libraries.stand_ins / "libcudart.so.13"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, runtime], check=True)
    run = simulate(
        """
import ctypes, sys, torch
nccl = ctypes.CDLL(sys.argv[1])
nccl.allocate_buffer.restype = ctypes.c_void_p
nccl.kind_of.argtypes = [ctypes.c_void_p]
x = torch.ones(1 << 20, device='cuda')
buffer = nccl.allocate_buffer()
assert buffer
DEVICE, MANAGED = 2, 3
assert (nccl.kind_of(buffer), nccl.kind_of(x.data_ptr())) == (DEVICE, MANAGED)
""",
        str(library),
    ).check()
    assert run.sim["device_allocations"] == 1
