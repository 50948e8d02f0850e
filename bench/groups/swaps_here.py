"""Swaps two models on a device that holds one, and prints time and traffic as JSON.

`python -m bench.groups.swaps_here ours|stock MODEL_MIB SWAPS` under `uvmalloc sim`. A model is a
list of weights. A swap ends when a kernel has read all weights of the waking model. `stock` is what
a careful user writes: pinned buffers that are kept, and copies that do not block.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
import uvmalloc
from torch import Tensor

from bench.simulated_counters import load_simulator, read_machine

_WEIGHT_MIB = 32
_LINK = ("copy_bytes", "migrated_bytes_to_device", "migrated_bytes_to_host", "evicted_bytes")


def _weights(count: int, value: float) -> list[Tensor]:
    """Returns weights that kernels of the device have written."""
    return [torch.empty(_WEIGHT_MIB << 18, device="cuda").fill_(value + i) for i in range(count)]


def _use(weights: list[Tensor]) -> str:
    total = torch.zeros((), device="cuda")
    for weight in weights:
        total += weight[:: 1 << 12].sum() + weight.sum()
    return total.item().hex()


def _ours(count: int) -> Callable[[int], str]:
    models, groups = [], []
    for number in range(2):
        with uvmalloc.group(f"model{number}") as group:
            models.append(_weights(count, number))
        groups.append(group)
        if number == 0:
            group.sleep()
            torch.cuda.synchronize()

    def swap(waking: int) -> str:
        groups[1 - waking].sleep()
        groups[waking].wake()
        return _use(models[waking])

    return swap


def _stock(count: int) -> Callable[[int], str]:
    models: list[list[Tensor]] = []
    buffers = []
    for number in range(2):
        weights = _weights(count, number)
        buffers.append([torch.empty(each.shape, pin_memory=True) for each in weights])
        models.append(weights)
        if number == 0:
            for buffer, weight in zip(buffers[0], weights, strict=True):
                buffer.copy_(weight, non_blocking=True)
            torch.cuda.synchronize()
            models[0] = []
            del weights

    def swap(waking: int) -> str:
        sleeping = 1 - waking
        for buffer, weight in zip(buffers[sleeping], models[sleeping], strict=True):
            buffer.copy_(weight, non_blocking=True)
        models[sleeping] = []
        models[waking] = [each.to("cuda", non_blocking=True) for each in buffers[waking]]
        return _use(models[waking])

    return swap


def main() -> None:
    kind, model_mib, swaps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    simulator = load_simulator()
    swap = (_ours if kind == "ours" else _stock)(model_mib // _WEIGHT_MIB)
    torch.cuda.synchronize()
    done = []
    for number in range(swaps):
        before = read_machine(simulator)
        result = swap(number % 2)
        torch.cuda.synchronize()
        after = read_machine(simulator)
        done.append(
            {
                "result": result,
                "time_ns": after["now_ns"] - before["now_ns"],
                "link_bytes": sum(after[name] - before[name] for name in _LINK),
                "to_host_bytes": after["migrated_bytes_to_host"] - before["migrated_bytes_to_host"],
            }
        )
    print(json.dumps(done))


if __name__ == "__main__":
    main()
