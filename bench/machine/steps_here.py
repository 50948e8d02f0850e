"""Trains a small GPT for STEPS steps, each with a mark. Prints as JSON the real seconds of each
step, and the seconds of its threads in user mode.

`python -m bench.machine.steps_here STEPS`
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import torch
import uvmalloc

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from train_gpt import GPT, train_step

EMBEDDING, LAYERS, HEADS, CONTEXT, BATCH_SIZE = 256, 4, 8, 256, 4


def main() -> None:
    torch.manual_seed(0)
    model = GPT(EMBEDDING, LAYERS, HEADS, CONTEXT).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds: dict[str, list[float]] = {"real_seconds": [], "user_seconds": []}
    for step in range(int(sys.argv[1])):
        uvmalloc.mark(f"step {step}")
        start, user = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        shape = (BATCH_SIZE, CONTEXT + 1)
        tokens = torch.randint(model.tokens.num_embeddings, shape).to("cuda")
        train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:])
        torch.cuda.synchronize()
        seconds["real_seconds"].append(time.perf_counter() - start)
        user = resource.getrusage(resource.RUSAGE_SELF).ru_utime - user
        seconds["user_seconds"].append(user)
    uvmalloc.mark("end")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
