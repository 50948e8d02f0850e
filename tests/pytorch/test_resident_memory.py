"""Loops that move batches take no more memory than with torch's own allocators.

The tests compare the memory of the process as the kernel reports it, not uvmalloc's figures.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate, SimulatedRun

ROOT = Path(__file__).parents[2]
LOOPS = ROOT / "bench" / "programs" / "random_loops.py"
# Without this setting, holes make glibc's heap grow, with any allocator.
FIXED_HEAP = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
ENVIRONMENT = FIXED_HEAP | {"PYTHONPATH": str(ROOT)}
MOST_OVER_STOCK = 1.25


def peaks(simulate: Simulate, first: int, last: int, *, native: bool) -> list[dict]:
    run = simulate(
        LOOPS, str(first), str(last), native=native, environment=FIXED_HEAP, timeout_seconds=1800
    )
    run.check()
    return [json.loads(line) for line in run.stdout.splitlines()]


def compare(simulate: Simulate, first: int, last: int) -> None:
    stock = peaks(simulate, first, last, native=True)
    ours = peaks(simulate, first, last, native=False)
    assert len(ours) == len(stock) == last - first
    too_many = [
        (round(mine["peak"] / theirs["peak"], 2), mine)
        for mine, theirs in zip(ours, stock, strict=True)
        if mine["peak"] > MOST_OVER_STOCK * theirs["peak"]
    ]
    assert not too_many


@pytest.mark.all
def test_random_loops_take_no_more_memory_than_with_torchs_allocators(simulate: Simulate) -> None:
    compare(simulate, 0, 8)


@pytest.mark.all
def test_many_random_loops_take_no_more_memory_than_with_torchs_allocators(
    simulate: Simulate,
) -> None:
    compare(simulate, 8, 500)


def check_flat(run: SimulatedRun) -> None:
    """Checks that memory stays flat. The program prints its resident memory early and late."""
    early, late = map(int, run.check().stdout.split())
    assert late < early + (32 << 20)


LOOP = """
import torch
from bench.programs.random_loops import resident_bytes

weight = torch.ones(8, device="cuda")
for step in range(LAST + 1):
    batch = torch.full((4 << 20,), float(step))
    moved = batch.to("cuda", non_blocking=NON_BLOCKING)
    total = moved[:8] @ weight
    del batch, moved
    if step % 10 == 0:
        torch.cuda.synchronize()
    if step in (10, LAST):
        print(resident_bytes())
"""


@pytest.mark.parametrize("policy", ["auto", "planned", "driver", "lru", "off"])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_memory_of_a_loop_over_batches_is_flat(
    simulate: Simulate, policy: str, non_blocking: bool
) -> None:
    last = 1000 if policy == "auto" else 200
    program = LOOP.replace("NON_BLOCKING", str(non_blocking)).replace("LAST", str(last))
    check_flat(simulate(program, policy=policy, environment=ENVIRONMENT))


@pytest.mark.parametrize("profile", ["integrated", "hmm", "coherent"])
def test_memory_of_the_loop_is_flat_on_each_kind_of_machine(
    simulate: Simulate, profile: str
) -> None:
    program = LOOP.replace("NON_BLOCKING", "True").replace("LAST", "200")
    check_flat(simulate(program, environment=ENVIRONMENT | {"UVMSIM_PROFILE": profile}))


LOADER = """
import torch
from bench.programs.random_loops import resident_bytes

class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, number):
        return torch.full((1 << 20,), float(number))

weight = torch.ones(1 << 20, device="cuda")
loader = torch.utils.data.DataLoader(Batches(), batch_size=4, pin_memory=True)
for step, batch in enumerate(loader):
    loss = (batch.to("cuda", non_blocking=True) @ weight).sum()
    if step % 10 == 0:
        loss.item()
    if step in (10, 90):
        print(resident_bytes())
"""


def test_memory_of_a_loop_over_a_pinning_loader_is_flat(simulate: Simulate) -> None:
    check_flat(simulate(LOADER, environment=ENVIRONMENT))


STREAM = """
import sys, torch, uvmalloc
from safetensors.torch import save_file
from bench.programs.random_loops import resident_bytes

file = sys.argv[1]
names = [f"layer{number:02}" for number in range(64)]
save_file({name: torch.ones(1 << 20) for name in names}, file)  # 256 MiB
torch.ones(1, device="cuda").item()
before = most = resident_bytes()
with uvmalloc.stream_safetensors(file, "cuda", window="16MiB") as stream:
    for tensors in stream:
        for tensor in tensors.values():
            assert tensor.sum().item() == 1 << 20
        del tensor
        most = max(most, resident_bytes())
print(most - before)
"""


def test_a_stream_keeps_a_few_windows_and_not_the_file(simulate: Simulate, tmp_path: Path) -> None:
    file = str(tmp_path / "model.safetensors")
    run = simulate(STREAM, file, environment=ENVIRONMENT).check()
    assert int(run.stdout) < 4 * (16 << 20)
