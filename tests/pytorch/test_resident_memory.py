"""Loops that move batches take no more memory than with torch's own allocators.

What counts is the memory of the process as the kernel sees it, not uvmalloc's figures.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

ROOT = Path(__file__).parents[2]
LOOPS = ROOT / "bench" / "programs" / "random_loops.py"
# Without it glibc's heap grows by holes, with any allocator.
FIXED_HEAP = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
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


@pytest.mark.slow
def test_random_loops_take_no_more_memory_than_with_torchs_allocators(simulate: Simulate) -> None:
    compare(simulate, 0, 8)


@pytest.mark.all
def test_many_random_loops_take_no_more_memory_than_with_torchs_allocators(
    simulate: Simulate,
) -> None:
    compare(simulate, 8, 500)


LOOP = """
import torch
from bench.programs.random_loops import resident_bytes

weight = torch.ones(8, device="cuda")
for step in range(201):
    batch = torch.full((8 << 20,), float(step))
    moved = batch.to("cuda", non_blocking=NON_BLOCKING)
    total = moved[:8] @ weight
    del batch, moved
    if step % 10 == 0:
        torch.cuda.synchronize()
    if step in (10, 200):
        print(resident_bytes())
"""


@pytest.mark.parametrize("policy", ["auto", "driver", "lru", "off"])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_memory_of_a_loop_over_batches_is_flat(
    simulate: Simulate, policy: str, non_blocking: bool
) -> None:
    program = LOOP.replace("NON_BLOCKING", str(non_blocking))
    run = simulate(program, policy=policy, environment=FIXED_HEAP | {"PYTHONPATH": str(ROOT)})
    run.check()
    early, late = map(int, run.stdout.split())
    assert late < early + (32 << 20)
