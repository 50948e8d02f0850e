"""Data loaders fork: workers find host tensors where their parent has them."""

from __future__ import annotations

from tests.pytorch.conftest import Simulate


def test_a_forked_loader_reads_managed_tensors(simulate: Simulate) -> None:
    run = simulate("""
import torch
from torch.utils.data import DataLoader, TensorDataset
data = torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024)
assert torch.ones(1, device='cuda').item() == 1
loader = DataLoader(TensorDataset(data), batch_size=128, num_workers=2, pin_memory=True,
                    multiprocessing_context='fork')
for epoch in range(2):
    total = 0.0
    for (batch,) in loader:
        assert batch.is_pinned()
        total += batch.to('cuda', non_blocking=True).double().sum().item()
    assert total == data.double().sum().item(), total
assert torch.ops.uvmalloc.is_managed(data)
torch.ops.uvmalloc.check_invariants()
""").check()
    assert run.report["facades"]["pinned"]["allocations"] > 0
    assert "Bus error" not in run.stderr


def test_a_child_allocates_from_malloc_and_its_parent_is_unharmed(simulate: Simulate) -> None:
    simulate("""
import os, torch
x = torch.ones(1 << 20)
y = x.to('cuda')
pid = os.fork()
if pid == 0:
    torch.set_num_threads(1)  # the parent's OpenMP threads do not exist here
    ok = x.sum().item() == 1 << 20
    z = torch.zeros(1 << 21)
    z += 1
    x.add_(1)
    ok = ok and z.sum().item() == 1 << 21 and not torch.ops.uvmalloc.is_managed(z)
    os._exit(0 if ok else 1)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert x.sum().item() == 1 << 20 and y.sum().item() == 1 << 20
assert torch.ones(1 << 20).to('cuda').sum().item() == 1 << 20
""").check()


def test_beyond_the_limit_one_line_says_what_to_do(simulate: Simulate) -> None:
    run = simulate(
        """
import os, torch
x = torch.ones(1 << 20)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
""",
        environment={"UVMALLOC_FORK_LIMIT": "1MiB"},
    ).check()
    assert run.stderr.count("UVMALLOC_FORK_LIMIT") == 1 and "spawn" in run.stderr


def test_subprocesses_and_spawned_workers_work(simulate: Simulate) -> None:
    simulate("""
import subprocess, torch
x = torch.ones(1 << 20).to('cuda')
assert subprocess.run(['git', '--version'], capture_output=True, check=True).stderr == b''
assert x.sum().item() == 1 << 20
""").check()
