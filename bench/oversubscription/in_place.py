"""Measures memory that kernels use on the host, because they touch each byte once.

All runs are on the simulated device. Times are relative to the same program with enough memory.

* Frozen weights, on a device that holds two thirds of them. Products with up to 16 rows read the
  other matrix once, so pages of that matrix that do not fit may stay on the host. With one row more
  they are moved. On a device that holds half of them, the time is also compared with that of the
  better of two ways: all weights are moved, or all are read on the host.
* The state of AdamW, on a device that holds two thirds of the step. The fused optimizer goes
  through the state in one kernel, so the state may stay. The default optimizer needs it in several
  kernels, so it is moved.

`python -m bench.oversubscription.in_place` prints only these figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.environment import clean_environment

_ROOT = Path(__file__).resolve().parents[2]
MACHINE = "h100-pcie5"
# The beginning of each program. A step adds to `times` before it runs, and to `sums` after it.
_BEGIN = """
import ctypes, json, sys, torch
simulator = ctypes.CDLL("libuvmsim.so")
simulator.uvmsim_now_ns.restype = ctypes.c_uint64
torch.manual_seed(0)
torch.set_num_threads(1)
times, sums = [], []
"""
_END = """
print(json.dumps({"step_ns": (times[-1] - times[-5]) / 4, "sums": sums}))
"""
FEW_ROWS = 16
# Arguments: rows, steps, and `host` if all weights are read on the host. 24 weights of 2 MiB.
PROGRAM = (
    _BEGIN
    + """
rows, steps = int(sys.argv[1]), int(sys.argv[2])
down = [torch.randn(1024, 512).to("cuda") for _ in range(12)]
up = [torch.randn(512, 1024).to("cuda") for _ in range(12)]
if sys.argv[3:] == ["host"]:
    import uvmalloc

    for weight in down + up:
        uvmalloc.advise(weight, preferred="cpu", accessed_by="cuda")
        uvmalloc.prefetch(weight, "cpu")
start = torch.randn(rows, 1024).to("cuda")
for _ in range(steps):
    torch.cuda.synchronize()
    times.append(simulator.uvmsim_now_ns())
    x = start
    for first, second in zip(down, up):
        x = torch.tanh(torch.mm(torch.tanh(torch.mm(x, first)), second))
    sums.append(x.sum().item().hex())
"""
    + _END
)
# Arguments: fused or default, and rows.
OPTIMIZER_PROGRAM = (
    _BEGIN
    + """
fused = sys.argv[1] == "fused"
layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(12)]
model = torch.nn.Sequential(*layers).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused or None)
x = torch.randn(int(sys.argv[2]), 1024).to("cuda")
for _ in range(10):
    torch.cuda.synchronize()
    times.append(simulator.uvmsim_now_ns())
    optimizer.zero_grad()
    loss = torch.tanh(model(x)).square().mean()
    loss.backward()
    optimizer.step()
    sums.append(loss.item().hex())
"""
    + _END
)
ENOUGH, WEIGHTS_CAPACITY, HALF_CAPACITY = "1GiB", "36MiB", "28MiB"
OPTIMIZER_ROWS, OPTIMIZER_CAPACITY = "2048", "150MiB"


def _run(program: str, arguments: list[str], capacity: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", MACHINE]
    command += ["--capacity", capacity, "--policy", "planned", "--"]
    command += [sys.executable, "-c", program, *arguments]
    environment = {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"a program with {arguments} failed:\n{finished.stderr}")
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def slowdown(enough: dict[str, Any], short: dict[str, Any]) -> float:
    """Returns the ratio of step times. Refuses runs with different results."""
    if enough["sums"] != short["sums"]:
        raise RuntimeError("the steps have other results with less memory")
    return float(short["step_ns"]) / float(enough["step_ns"])


def _slowdown_of(program: str, arguments: list[str], capacity: str) -> float:
    return slowdown(*(_run(program, arguments, each) for each in (ENOUGH, capacity)))


def measure() -> dict[str, Any]:
    """Returns the part of oversubscription.json about memory that is used in place."""
    weights, moved_weights = (
        _slowdown_of(PROGRAM, [str(rows), "20"], WEIGHTS_CAPACITY)
        for rows in (FEW_ROWS, FEW_ROWS + 1)
    )
    state, moved_state = (
        _slowdown_of(OPTIMIZER_PROGRAM, [kind, OPTIMIZER_ROWS], OPTIMIZER_CAPACITY)
        for kind in ("fused", "default")
    )
    both, moved_half = (
        _run(PROGRAM, [str(rows), "20"], HALF_CAPACITY) for rows in (FEW_ROWS, FEW_ROWS + 1)
    )
    on_host = _run(PROGRAM, [str(FEW_ROWS), "20", "host"], ENOUGH)
    return {
        "both_memories": both["step_ns"] / min(moved_half["step_ns"], on_host["step_ns"]),
        "in_place_speedup": moved_weights / weights,
        "in_place_optimizer_speedup": moved_state / state,
        "in_place_detail": {
            "in_place": weights,
            "moved": moved_weights,
            "optimizer_in_place": state,
            "optimizer_moved": moved_state,
            "half_in_place_ns": both["step_ns"],
            "half_moved_ns": moved_half["step_ns"],
            "all_on_host_ns": on_host["step_ns"],
        },
    }


if __name__ == "__main__":
    Console().print_json(data=measure())
