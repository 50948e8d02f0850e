"""Trains the demo's GPT for as many steps as the argument says, and prints each step's figures.

`python -m bench.oversubscription.live_steps_here STEPS` under `uvmalloc sim`. The output is JSON:
for each step the exact loss, and the simulated machine's virtual time and counters.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import torch
from uvmalloc.libraries import find_libraries

from bench.oversubscription.steps_here import CONTEXT, EMBEDDING, HEADS, LAYERS, SEQUENCES
from bench.simulated_counters import read_counters

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from train_gpt import GPT, train_step


def main() -> None:
    simulator = ctypes.CDLL(str(find_libraries().stand_ins / "libuvmsim.so"))
    simulator.uvmsim_now_ns.restype = ctypes.c_uint64
    torch.manual_seed(0)
    model = GPT(EMBEDDING, LAYERS, HEADS, CONTEXT).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = []
    for _ in range(int(sys.argv[1])):
        tokens = torch.randint(model.tokens.num_embeddings, (SEQUENCES, CONTEXT + 1)).to("cuda")
        loss = train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:])
        torch.cuda.synchronize()
        figures = read_counters(simulator)
        steps.append({"loss": loss.hex(), "now_ns": int(simulator.uvmsim_now_ns()), **figures})
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
