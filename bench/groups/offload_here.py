"""Runs two models in turn by accelerate's offload hooks, and prints time and traffic as JSON.

`python -m bench.groups.offload_here hooks|stock ROUNDS` under `uvmalloc sim`. `hooks` calls
uvmalloc.offload_hooks().
"""

from __future__ import annotations

import json
import sys

import torch
import uvmalloc
from accelerate import cpu_offload_with_hook

from bench.simulated_counters import load_simulator, read_machine

_SIDE, _LAYERS = 2048, 8
_BYTES = ("copy_bytes", "migrated_bytes_to_device", "migrated_bytes_to_host", "evicted_bytes")


def main() -> None:
    simulator = load_simulator()
    if sys.argv[1] == "hooks":
        uvmalloc.offload_hooks()
    torch.manual_seed(0)
    first, second = (
        torch.nn.Sequential(*(torch.nn.Linear(_SIDE, _SIDE) for _ in range(_LAYERS)))
        for _ in range(2)
    )
    first, of_first = cpu_offload_with_hook(first, "cuda:0")
    second, of_second = cpu_offload_with_hook(second, "cuda:0", prev_module_hook=of_first)
    x = torch.randn(4, _SIDE)
    done = []
    for _ in range(int(sys.argv[2])):
        torch.cuda.synchronize()
        before = read_machine(simulator)
        with torch.no_grad():
            result = second(first(x)).sum().item().hex()
        of_second.offload()
        torch.cuda.synchronize()
        after = read_machine(simulator)
        moved = {name: after[name] - before[name] for name in _BYTES}
        done.append({"result": result, "time_ns": after["now_ns"] - before["now_ns"], **moved})
    print(json.dumps(done))


if __name__ == "__main__":
    main()
