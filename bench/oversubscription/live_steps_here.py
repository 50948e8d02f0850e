"""Runs steps of a program on the device, and prints the figures of each.

`python -m bench.oversubscription.live_steps_here PROGRAM STEPS` under `uvmalloc sim`. The output
is JSON: the device memory of pages at the end, and for each step its result, and the simulated
machine's virtual time and counters after it. `hint_calls` are the driver's calls for hints, and
`order_calls` those that order streams; PyTorch itself calls the runtime library. `used_bytes` is
the program's own count of the memory that its steps needed, if the program has one.
"""

from __future__ import annotations

import json
import sys

import torch

from bench.oversubscription.programs import make
from bench.simulated_counters import count_calls, load_simulator, read_machine, read_managed_bytes

HINT_CALLS = (
    "cuMemAdvise", "cuMemAdvise_v2", "cuMemPrefetchAsync", "cuMemPrefetchAsync_v2",
    "cuMemPrefetchBatchAsync", "cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync",
)  # fmt: skip
_ORDER_CALLS = ("cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize", "cuStreamSynchronize")


def main() -> None:
    simulator = load_simulator()
    torch.manual_seed(0)
    for device in range(1, torch.cuda.device_count()):
        torch.zeros(1, device=f"cuda:{device}")  # a first use of the device by this process
    step = make(sys.argv[1])
    steps = []
    for _ in range(int(sys.argv[2])):
        result = step()
        torch.cuda.synchronize()
        calls = {
            "hint_calls": count_calls(simulator, HINT_CALLS),
            "order_calls": count_calls(simulator, _ORDER_CALLS),
        }
        used = {"used_bytes": getattr(step, "used_bytes", 0)}
        steps.append({"result": result, **read_machine(simulator), **calls, **used})
    print(json.dumps({"managed_bytes": read_managed_bytes(simulator), "steps": steps}))


if __name__ == "__main__":
    main()
