"""Trains a small transformer eagerly, a few steps for each line on standard input.

"start" forks a process, which answers with the name of torch's allocator. For a number N the
process makes N steps and answers with their median seconds. "end" ends the process and is answered
too; then another process may be started. This way, many processes share one import of torch. Two
such programs, one with torch's own allocators and one under uvmalloc, can alternate. Answers are
JSON, as bench.allocators.server reads them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch

WARM_UP_STEPS = 5


def trainer() -> Callable[[], float]:
    """Returns a function that makes a step and returns its seconds."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True), 2
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(4, 32, 128).to("cuda")

    def step() -> float:
        start = time.perf_counter()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return step


def answer(**values: float | str) -> None:
    print(json.dumps({"values": values}), flush=True)


def train() -> None:
    """Answers in its own process, until "end"."""
    step = trainer()
    for _ in range(WARM_UP_STEPS):
        step()
    answer(allocator=torch.cuda.get_allocator_backend())
    for line in iter(sys.stdin.readline, "end\n"):
        step()  # refills the processor's caches after another process
        answer(seconds=statistics.median(step() for _ in range(int(line))))


def main() -> None:
    torch.set_num_threads(1)
    for _ in iter(sys.stdin.readline, ""):  # "start"
        child = os.fork()
        if child == 0:
            train()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            sys.exit(f"the training process ended with {os.waitstatus_to_exitcode(status)}")
        # Answer only now: the line that follows the answer could otherwise be read ahead by the
        # child.
        answer()


if __name__ == "__main__":
    main()
