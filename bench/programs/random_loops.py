"""Runs random loops that make batches on the host, move them, and sometimes wait for the device.

    python random_loops.py FIRST LAST [STEPS]

Prints one line of JSON for each seed from FIRST to LAST - 1: the loop, and the peak of the
process's resident memory while it ran, in bytes. A page that is mapped twice counts once. STEPS is
the number of batches; by default the seed chooses.

Run it with MALLOC_MMAP_THRESHOLD_ set. Otherwise glibc's heap fragments and grows, with any
allocator.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

MIB = 1 << 20


def resident_bytes() -> int:
    """Returns bytes: private memory, the proportional part of shared memory, and mapped files."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    own = sum(
        int(line.split()[1]) for line in rollup if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
    )
    status = Path("/proc/self/status").read_text().splitlines()
    files = next(int(line.split()[1]) for line in status if line.startswith("RssFile:"))
    return (own + files) << 10


@dataclass
class Loop:
    batch: str  # pageable, copied to pinned memory, or pinned from the start
    sizes: list[int]  # of batches, in float32 elements
    side_stream: bool
    non_blocking: bool
    wait: str  # waits for the device: never, in each step, every ten steps, through a scalar
    kept: int  # batches and results of earlier steps that stay alive
    back: bool  # whether a result moves to the host
    writes: bool  # whether the loop writes to the moved batch
    copies: bool  # whether it copies into an existing tensor instead of moving
    steps: int

    @staticmethod
    def of(choose: random.Random, steps: int | None) -> Loop:
        count = choose.choice([1, 1, 2, 5, 40])
        return Loop(
            batch=choose.choice(["pageable", "pageable", "copied", "pinned"]),
            sizes=[choose.randint(1, 48) * (MIB // 4) for _ in range(count)],
            side_stream=choose.random() < 0.3,
            non_blocking=choose.random() < 0.5,
            wait=choose.choice(["never", "never", "each", "tenth", "scalar"]),
            kept=choose.choice([0, 0, 0, 1, 3]),
            back=choose.random() < 0.25,
            writes=choose.random() < 0.25,
            copies=choose.random() < 0.1,
            steps=steps or choose.choice([20, 40]),
        )

    def make_batch(self, size: int, value: int) -> torch.Tensor:
        if self.batch == "pinned":
            return torch.empty(size, pin_memory=True).fill_(value)
        batch = torch.full((size,), float(value))
        return batch.pin_memory() if self.batch == "copied" else batch

    def run(self, choose: random.Random) -> int:
        """Returns the peak of resident memory, sampled in each step while its tensors are alive."""
        peak = 0
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        weight = torch.ones(8, device="cuda")
        stream = torch.cuda.Stream() if self.side_stream else None
        target = torch.empty(max(self.sizes), device="cuda") if self.copies else None
        for step in range(self.steps):
            batch = self.make_batch(choose.choice(self.sizes), step)
            with torch.cuda.stream(stream):
                if target is None:
                    moved = batch.to("cuda", non_blocking=self.non_blocking)
                else:
                    moved = target[: batch.numel()]
                    moved.copy_(batch, non_blocking=self.non_blocking)
                if self.writes:
                    moved.add_(1)
                total = moved[:8] @ weight
                result = moved * 2
                back = result.to("cpu", non_blocking=self.non_blocking) if self.back else None
            peak = max(peak, resident_bytes())
            held.append((batch, moved))
            del held[: len(held) - self.kept]
            del batch, moved, result, back
            if self.wait == "each" or (self.wait == "tenth" and step % 10 == 9):
                torch.cuda.synchronize()
            elif self.wait == "scalar" and step % 10 == 9:
                total.item()
        torch.cuda.synchronize()
        return peak


def main(first: int, last: int, steps: int | None = None) -> None:
    torch.set_num_threads(1)
    for seed in range(first, last):
        choose = random.Random(seed)
        loop = Loop.of(choose, steps)
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()
        peak = loop.run(choose)
        print(json.dumps({"seed": seed, "peak": peak} | asdict(loop)), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
