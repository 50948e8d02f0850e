"""Times a training step with full timing on this simulator and on an earlier checkout's."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench.environment import clean_environment

_ROOT = Path(__file__).resolve().parents[2]
_STEPS, _WARM_UP_STEPS = 12, 4
_ROUNDS = 5


def _step_seconds(checkout: Path, options: list[str]) -> float:
    """Returns the least processor time of a run's steps, in user mode and over all threads."""
    command = [sys.executable, "-P", "-m", "uvmalloc", "sim", "--native", "--no-report", *options]
    command += ["--", sys.executable, "-P", "-m", "bench.machine.steps_here", str(_STEPS)]
    environment = {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join([str(checkout / "pytorch" / "python"), str(_ROOT)]),
        "UVMALLOC_LIB_DIR": str(checkout / "build" / "release" / "lib"),
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"the training program failed in {checkout}:\n{finished.stderr}")
    seconds: list[float] = json.loads(finished.stdout.splitlines()[-1])["user_seconds"]
    return min(seconds[_WARM_UP_STEPS:])


def step_ratio(earlier: Path) -> dict[str, object]:
    """Returns the median ratio of alternating runs. The earlier checkout has no --machine."""
    runs = [
        (_step_seconds(_ROOT, ["--machine", "h100-pcie5"]), _step_seconds(earlier, []))
        for _ in range(_ROUNDS)
    ]
    return {
        "step_time_ratio": statistics.median(now / before for now, before in runs),
        "step_user_seconds": runs,
    }
