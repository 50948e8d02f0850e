"""Runs steps of a workload on the device, and prints the figures of each.

`python -m bench.oversubscription.live_steps_here WORKLOAD STEPS` under `uvmalloc sim`. The output
is JSON: the device memory of pages at the end, and for each step its result, and the simulated
machine's virtual time and counters after it.
"""

from __future__ import annotations

import json
import sys

import torch

from bench.oversubscription.steps_here import WORKLOADS
from bench.simulated_counters import load_simulator, read_machine, read_managed_bytes


def main() -> None:
    simulator = load_simulator()
    torch.manual_seed(0)
    for device in range(1, torch.cuda.device_count()):
        torch.zeros(1, device=f"cuda:{device}")  # a first use of the device by this process
    step = WORKLOADS[sys.argv[1]]()
    steps = []
    for _ in range(int(sys.argv[2])):
        result = step()
        torch.cuda.synchronize()
        steps.append({"result": result, **read_machine(simulator)})
    print(json.dumps({"managed_bytes": read_managed_bytes(simulator), "steps": steps}))


if __name__ == "__main__":
    main()
