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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from train_gpt import GPT, train_step

_COUNTERS = (
    "kernels", "managed_allocations", "managed_frees", "device_allocations", "device_frees",
    "pinned_allocations", "pinned_frees", "advice_calls", "prefetch_calls", "discard_calls",
    "copy_calls", "copy_bytes", "fault_pages_device", "fault_pages_host",
    "migrated_bytes_to_device", "migrated_bytes_to_host", "migrated_bytes_between_devices",
    "populated_bytes_device", "populated_bytes_host", "evicted_chunks", "evicted_bytes",
    "remote_access_bytes", "unimplemented_calls", "graph_launches", "faults_device",
    "speculative_pages_device", "throttles_device", "pinned_pages_device",
)  # fmt: skip


class _Counters(ctypes.Structure):
    """uvmsim_counters of sim/uvmsim.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in _COUNTERS]


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
        counters = _Counters()
        simulator.uvmsim_get_counters(ctypes.byref(counters))
        figures = {name: int(getattr(counters, name)) for name in _COUNTERS}
        steps.append({"loss": loss.hex(), "now_ns": int(simulator.uvmsim_now_ns()), **figures})
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
