"""Data loaders fork: workers find host tensors at the same addresses as their parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

# Machines with devices that reach ordinary memory. Host tensors use ordinary memory because it is
# best there, or because the user wants it.
on_ordinary_memory = pytest.mark.parametrize(
    "machine",
    [
        {"UVMSIM_PROFILE": "coherent"},
        {"UVMSIM_PROFILE": "hmm", "UVMALLOC_HOST_MEMORY": "ordinary"},
    ],
    ids=["coherent", "hmm"],
)


def test_a_forked_loader_reads_managed_tensors(simulate: Simulate) -> None:
    run = simulate("""
import torch
from torch.utils.data import DataLoader, TensorDataset
assert torch.ones(1, device='cuda').item() == 1
data = torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024)
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
torch.cuda.init()
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


@pytest.mark.parametrize("owner", ["torch.cuda.CUDAGraph()", "torch.cuda.MemPool()"])
def test_a_graph_or_pool_of_the_parent_ends_in_the_child(simulate: Simulate, owner: str) -> None:
    """Its destructor runs there, where no program can catch an error."""
    run = simulate(f"""
import os, sys, torch
x = torch.zeros(1 << 20, device='cuda')
owner = {owner}
if hasattr(owner, 'replay'):
    with torch.cuda.graph(owner):
        y = x + 1
else:
    with torch.cuda.use_mem_pool(owner):
        y = x + 1
for ends_early in (True, False):
    child = os.fork()
    if child == 0:
        if ends_early:
            del owner, y
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, ends_early
with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
    print(torch.ones(1 << 20, device='cuda').sum().item())
""").check()
    assert run.stdout.splitlines()[-1] == "1048576.0"


@pytest.mark.parametrize("native", [True, False], ids=["native", "uvmalloc"])
def test_a_childs_device_computes_after_its_parent_used_openmp(
    simulate: Simulate, native: bool
) -> None:
    simulate(
        """
import os, torch
torch.set_num_threads(2)
torch.arange(1 << 17, dtype=torch.float32).add_(1)  # by two threads, below the size that is managed
pid = os.fork()
if pid == 0:
    os._exit(0 if torch.ones(1 << 21, device='cuda').add_(1).sum().item() == 1 << 22 else 1)
_, status = os.waitpid(pid, 0)
assert status == 0, status
""",
        native=native,
        timeout_seconds=40,
    ).check()


def test_beyond_the_limit_one_line_says_what_to_do(simulate: Simulate) -> None:
    run = simulate(
        """
import os, torch
torch.cuda.init()
x = torch.ones(1 << 20)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
""",
        environment={"UVMALLOC_FORK_LIMIT": "1MiB"},
    ).check()
    assert run.stderr.count("UVMALLOC_FORK_LIMIT") == 1 and "spawn" in run.stderr


def test_the_workers_of_an_epoch_share_one_copy_and_give_it_back(simulate: Simulate) -> None:
    size = 128 << 20
    run = simulate("""
import os, torch
from torch.utils.data import DataLoader, Dataset
assert torch.ones(1, device='cuda').item() == 1
data = torch.ones(8, 4 << 20)
class Rows(Dataset):
    def __len__(self): return len(data)
    def __getitem__(self, row): return data[row].sum().item()
for epoch in range(3):
    loader = DataLoader(Rows(), batch_size=1, num_workers=2, multiprocessing_context='fork')
    assert sum(batch.item() for batch in loader) == data.numel()
    names = [os.readlink(entry) for entry in os.scandir('/proc/self/fd') if os.path.lexists(entry)]
    assert not any('uvmalloc-fork' in name for name in names), names
""").check()
    forks = run.report["forks"]
    assert (forks["count"], forks["without_copy"]) == (6, 0)
    # The first worker of each epoch copies: nobody has the last epoch's copy any more.
    assert (forks["copied_bytes"], forks["shared_bytes"]) == (3 * size, 3 * size)


def test_a_large_copy_is_reported_once_with_what_avoids_it(simulate: Simulate) -> None:
    run = simulate("""
import os, torch, uvmalloc
def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()
torch.cuda.init()
with uvmalloc.region(managed=False):
    ordinary = torch.zeros(80 << 20)
fork()
assert uvmalloc.stats()['forks']['count'] == 0
managed = torch.zeros(72 << 20)
fork()
fork()
assert uvmalloc.stats()['forks']['copied_bytes'] == 2 * managed.nbytes
""").check()
    assert run.stderr.count("uvmalloc: fork: 288 MiB of live host memory was copied") == 1
    for way_out in ("spawn", "forkserver", "uvmalloc.region(managed=False)"):
        assert way_out in run.stderr


def test_what_only_a_device_uses_is_not_copied(simulate: Simulate) -> None:
    """A model was made on the host and moved: its weights stay on the device."""
    simulate("""
import os, torch, uvmalloc
torch.cuda.init()
def copied_at_fork(check=lambda: True):
    before = uvmalloc.stats()['forks']
    pid = os.fork()
    if pid == 0:
        os._exit(0 if check() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    after = uvmalloc.stats()['forks']
    return sum(after[key] - before[key] for key in ('copied_bytes', 'shared_bytes'))
weights = torch.ones(4 << 20).to('cuda')
weights.add_(1)  # up to torch 2.12 it is known from the first write on
assert copied_at_fork() == 0
host = weights.cpu()
assert copied_at_fork(lambda: host[-1].item() == 2) == host.nbytes
del host
weights.add_(1)
assert copied_at_fork() == 0
# The other way round: what was made on the device, and is in use on both sides.
made = torch.full((4 << 20,), 5.0, device='cuda')
host = made.cpu()
again = host.to('cuda')
assert copied_at_fork(lambda: host[-1].item() == 5) == host.nbytes
part = torch.full((4 << 20,), 6.0, device='cuda')[: 2 << 20].cpu()
assert copied_at_fork(lambda: part[0].item() == 6) >= host.nbytes + part.nbytes
torch.ops.uvmalloc.check_invariants()
""").check()


def test_forks_in_threads_of_children_and_beside_kernels(simulate: Simulate) -> None:
    simulate("""
import os, threading, torch
torch.set_num_threads(1)
torch.cuda.init()
data = torch.arange(4 << 20, dtype=torch.float32)
card = data.to('cuda')
expected = data.double().sum().item()
def wait(pid):
    assert os.waitpid(pid, 0)[1] == 0
def child(depth):
    data[0] += 1
    mine = torch.full((1 << 20,), float(depth))
    fine = data.double().sum().item() == expected + depth
    if fine and depth < 3:
        pid = os.fork()
        if pid == 0:
            child(depth + 1)
        fine = os.waitpid(pid, 0)[1] == 0
    os._exit(0 if fine and mine[-1].item() == depth else 1)
def fork():
    pid = os.fork()
    if pid == 0:
        child(1)
    wait(pid)
stop = False
def launch():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        while not stop:
            torch.cuda._sleep(1_000_000)
            (card * 2).cpu()
busy = threading.Thread(target=launch)
busy.start()
forks = [threading.Thread(target=fork) for _ in range(3)]
for thread in forks: thread.start()
for _ in range(3): fork()
for thread in forks: thread.join()
stop = True
busy.join()
assert card.double().sum().item() == expected == data.double().sum().item()
torch.ops.uvmalloc.check_invariants()
""").check()


def test_a_subprocess_works_and_says_nothing(simulate: Simulate) -> None:
    simulate("""
import subprocess, torch
x = torch.ones(1 << 20).to('cuda')
ended = subprocess.run(['git', '--version'], capture_output=True, check=True)
assert (ended.stderr, ended.stdout.split()[:2]) == (b'', [b'git', b'version'])
assert x.sum().item() == 1 << 20
""").check()


def test_spawned_workers_allocate_for_themselves(simulate: Simulate, tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text("""
import multiprocessing, torch
def work(number, data, results):
    on_device = data.to('cuda') * number
    managed = torch.ops.uvmalloc.is_managed(on_device)
    results.put((number, on_device.sum().item(), managed))
if __name__ == '__main__':
    data = torch.ones(1 << 20)
    assert data.to('cuda').sum().item() == 1 << 20
    context = multiprocessing.get_context('spawn')
    results = context.Queue()
    workers = [context.Process(target=work, args=(n, data, results)) for n in (1, 2)]
    for worker in workers: worker.start()
    found = sorted(results.get(timeout=50) for _ in workers)
    for worker in workers: worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    print(found)
""")
    run = simulate(script).check()
    assert run.stdout == f"[(1, {float(1 << 20)}, True), (2, {float(2 << 20)}, True)]\n"


@on_ordinary_memory
def test_workers_share_ordinary_memory_and_nothing_is_copied(
    simulate: Simulate, machine: dict[str, str]
) -> None:
    run = simulate(
        """
import os, torch, uvmalloc
from torch.utils.data import DataLoader, Dataset
torch.cuda.init()
data = torch.arange(24, dtype=torch.float32).repeat_interleave(1 << 20).reshape(24, -1)
moved = torch.full((4 << 20,), 2.0).to('cuda')
class Rows(Dataset):
    def __len__(self): return len(data)
    def __getitem__(self, row):
        seen = data[row].double().mean().item()
        data[row] += 100  # its own
        return seen
assert torch.ones(1, device='cuda').item() == 1
for epoch in range(3):
    loader = DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context='fork')
    assert torch.cat(list(loader)).tolist() == list(range(24))
    assert data[:, -1].tolist() == list(range(24))
    assert moved.sum().item() == 2.0 * (4 << 20)
stats = uvmalloc.stats()
assert stats['host_memory'] == 'ordinary', stats['host_memory']
assert stats['forks'] == {'count': 0, 'copied_bytes': 0, 'shared_bytes': 0, 'without_copy': 0,
                          'seconds': 0.0}, stats['forks']
torch.ops.uvmalloc.check_invariants()
""",
        environment=machine,
    ).check()
    assert run.report["forks"]["count"] == 0


@on_ordinary_memory
def test_a_move_of_ordinary_memory_copies_nothing_and_stays_fork_safe(
    simulate: Simulate, machine: dict[str, str]
) -> None:
    run = simulate(
        """
import os, torch
torch.set_num_threads(1)
torch.cuda.init()
x = torch.arange(16 << 20, dtype=torch.float32)  # 64 MiB
y = x.to('cuda')
weights = torch.full((4 << 20,), 3.0).to('cuda')
weights.add_(1)
pid = os.fork()
if pid == 0:
    fine = x[-1].item() == (16 << 20) - 1
    x.zero_()
    os._exit(0 if fine and x[-1].item() == 0 else 1)
assert os.waitpid(pid, 0)[1] == 0
assert y[-1].item() == x[-1].item() == (16 << 20) - 1
assert weights.sum().item() == 4.0 * (4 << 20)
""",
        environment=machine,
    ).check()
    assert run.report["moves"]["host_to_device"] == 2
    assert run.report["copies_by_moves"]["bytes_at_or_above_threshold"] == 0
    assert run.report["materializations"]["copies"] == 0
    assert run.sim["copy_bytes"] < 1 << 20
    assert run.report["forks"]["count"] == 0
    failed = [run.report[kind]["failed"] for kind in ("prefetches", "advice")]
    assert failed == [0, 0]


@on_ordinary_memory
def test_training_on_ordinary_memory_is_the_same_as_stock(
    simulate: Simulate, machine: dict[str, str]
) -> None:
    program = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)  # sums depend on how many share them
torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 4096), torch.randint(10, (512,)))
model = torch.nn.Sequential(torch.nn.Linear(4096, 512), torch.nn.ReLU(),
                            torch.nn.Linear(512, 10)).to('cuda')
optimizer = torch.optim.AdamW(model.parameters())
for batch, labels in DataLoader(data, batch_size=128, num_workers=2,
                                multiprocessing_context='fork'):
    loss = torch.nn.functional.cross_entropy(model(batch.to('cuda')), labels.to('cuda'))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
print(sum(p.double().sum().item() for p in model.cpu().parameters()).hex())
"""
    stock = simulate(program, native=True, environment=machine).check()
    assert simulate(program, environment=machine).check().stdout == stock.stdout


def test_what_was_made_on_the_device_or_pinned_is_copied_on_every_machine(
    simulate: Simulate,
) -> None:
    simulate(
        """
import os, torch, uvmalloc
made = torch.full((4 << 20,), 5.0, device='cuda').cpu()
pinned = torch.full((2 << 20,), 6.0).pin_memory()
pid = os.fork()
if pid == 0:
    os._exit(0 if made[-1].item() == 5 and pinned[-1].item() == 6 else 1)
assert os.waitpid(pid, 0)[1] == 0
assert uvmalloc.stats()['forks']['copied_bytes'] == made.nbytes + pinned.nbytes
""",
        environment={"UVMSIM_PROFILE": "coherent"},
    ).check()


@pytest.mark.parametrize(
    "machine",
    [{"UVMSIM_PROFILE": "coherent", "UVMALLOC_HOST_MEMORY": "managed"}, {"UVMSIM_PROFILE": "hmm"}],
    ids=["coherent", "hmm"],
)
def test_elsewhere_and_where_a_user_wants_it_memory_is_managed(
    simulate: Simulate, machine: dict[str, str]
) -> None:
    run = simulate(
        """
import os, torch
torch.cuda.init()
x = torch.ones(4 << 20)
if os.fork() == 0:
    os._exit(0)
os.wait()
""",
        environment=machine,
    ).check()
    assert run.report["host_memory"] == "managed"
    assert run.report["forks"]["copied_bytes"] == 16 << 20
