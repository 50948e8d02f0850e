"""Wakes a group, sleeps and wakes it again, and prints times and traffic as JSON.

`python -m bench.groups.wake_here GROUP_MIB` under `uvmalloc sim`.
"""

from __future__ import annotations

import json
import sys

import torch
import uvmalloc

from bench.simulated_counters import load_simulator, read_machine


def main() -> None:
    simulator = load_simulator()
    with uvmalloc.group("llm") as group:
        weights = [
            torch.empty(64 << 18, device="cuda").fill_(i) for i in range(int(sys.argv[1]) // 64)
        ]
    group.sleep()
    torch.cuda.synchronize()
    before = read_machine(simulator)
    woken_bytes = group.wake()
    torch.cuda.synchronize()
    woken = read_machine(simulator)
    total = sum(float(weight.sum()) for weight in weights)
    used = read_machine(simulator)
    group.sleep()
    torch.cuda.synchronize()
    slept = read_machine(simulator)
    again = sum(float(weight.sum()) for weight in weights)
    if again != total:
        raise RuntimeError(f"the weights have changed: {again} instead of {total}")
    print(
        json.dumps(
            {
                "woken_bytes": woken_bytes,
                "wake_ns": woken["now_ns"] - before["now_ns"],
                "faults": used["faults_device"] - woken["faults_device"],
                "second_sleep_bytes": slept["migrated_bytes_to_host"]
                - used["migrated_bytes_to_host"],
            }
        )
    )


if __name__ == "__main__":
    main()
