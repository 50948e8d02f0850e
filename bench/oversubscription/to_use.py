"""Measures the time from a move to the end of the first kernel that uses the tensor.

The program moves a tensor of 1 GiB, which the CPU has written, to the simulated device, and a
kernel reads it. Stock PyTorch copies the tensor at the full rate of the link; on a card, a copy
from pageable memory is slower. uvmalloc prefetches the pages. Time is virtual. CPU touches are
tracked, so that both copy the same bytes.

`python -m bench.oversubscription.to_use` prints only this figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.environment import clean_environment

_ROOT = Path(__file__).resolve().parents[2]
SIZE_BYTES = 1 << 30
ROUNDS = 2
_MACHINE = "h100-pcie5"
Rounds = Sequence[dict[str, Any]]


def _run(native: bool) -> Rounds:
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", _MACHINE]
    command += ["--cpu-touches", *(["--native"] if native else []), "--"]
    command += [sys.executable, "-m", "bench.oversubscription.to_use_here"]
    command += [str(SIZE_BYTES), str(ROUNDS)]
    environment = {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"a move and a use failed:\n{finished.stderr}")
    rounds: Rounds = json.loads(finished.stdout)
    return rounds


def ratio_of(ours: Rounds, stock: Rounds, size_bytes: int) -> float:
    """Returns the largest ratio of the rounds. Refuses rounds that did not copy the tensor."""
    for each in (*ours, *stock):
        if each["copied_bytes"] < size_bytes:
            raise RuntimeError(
                f"{each['copied_bytes']} bytes were copied of {size_bytes}: touches by the CPU are "
                "not tracked here (docs/reference/simulator.md)"
            )
    if [each["sum"] for each in ours] != [each["sum"] for each in stock]:
        raise RuntimeError("the kernels have read different bytes")
    return max(
        float(one["time_ns"]) / float(other["time_ns"])
        for one, other in zip(ours, stock, strict=True)
    )


def measure() -> dict[str, Any]:
    """Returns the part of oversubscription.json about a move and a use."""
    ours, stock = _run(native=False), _run(native=True)
    return {
        "to_use_ratio": ratio_of(ours, stock, SIZE_BYTES),
        "to_use_ns": [each["time_ns"] for each in ours],
        "to_use_stock_ns": [each["time_ns"] for each in stock],
    }


if __name__ == "__main__":
    Console().print_json(data=measure())
