"""Moves a fresh tensor to the device, reads it there, and prints the time.

`python -m bench.oversubscription.to_use_here BYTES ROUNDS` under `uvmalloc sim`. The output is
JSON: for each round the virtual time from the move to the end of the kernel, and the bytes copied
in that time.
"""

from __future__ import annotations

import json
import sys

import torch

from bench.simulated_counters import load_simulator, read_machine


def main() -> None:
    simulator = load_simulator()
    torch.ones(1 << 20).to("cuda").sum().item()  # the first use loads and allocates
    rounds = []
    for _ in range(int(sys.argv[2])):
        tensor = torch.ones(int(sys.argv[1]) // 4)
        torch.cuda.synchronize()
        before = read_machine(simulator)
        total = tensor.to("cuda").sum()
        torch.cuda.synchronize()
        after = read_machine(simulator)
        copied = sum(
            after[name] - before[name] for name in ("copy_bytes", "migrated_bytes_to_device")
        )
        time_ns = after["now_ns"] - before["now_ns"]
        rounds.append({"sum": total.item(), "time_ns": time_ns, "copied_bytes": copied})
    print(json.dumps(rounds))


if __name__ == "__main__":
    main()
