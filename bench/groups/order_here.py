"""Wakes a group and multiplies by its weights, last one first, and prints times as JSON.

`python -m bench.groups.order_here WEIGHTS` under `uvmalloc sim`. At the first wake the order in
which kernels use the weights is unknown, later it is known.
"""

from __future__ import annotations

import json
import sys

import torch
import uvmalloc

from bench.simulated_counters import load_simulator, read_machine

_SIDE, _ROWS = 2896, 1024  # a weight has 32 MiB


def main() -> None:
    simulator = load_simulator()
    with uvmalloc.group("llm") as group:
        weights = [
            torch.eye(_SIDE, device="cuda").mul_(1 + i / 64) for i in range(int(sys.argv[1]))
        ]
    rows = torch.ones(_ROWS, _SIDE, device="cuda")
    times, results, faults = [], [], 0
    for _ in range(3):
        group.sleep()
        torch.cuda.synchronize()
        before = read_machine(simulator)
        group.wake()
        x = rows
        for weight in reversed(weights):
            x = x @ weight
        torch.cuda.synchronize()
        after = read_machine(simulator)
        times.append(after["now_ns"] - before["now_ns"])
        faults += after["faults_device"] - before["faults_device"]
        results.append(x.sum().item().hex())
    if len(set(results)) != 1:
        raise RuntimeError(f"the results differ: {results}")
    print(json.dumps({"times_ns": times, "faults": faults}))


if __name__ == "__main__":
    main()
