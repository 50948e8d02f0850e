"""A PyTorch program that runs with less device memory than it needs, under each policy.

The demo's GPT trains for ten steps on the simulated device, unmodified. Nothing is recorded before:
uvmalloc learns the step while it runs. Figures are of all ten steps; the time is the mean of the
last four, in virtual time. The program runs as it does on a card, so that two runs may differ in
the order of the host's calls, and not in their losses.

`python -m bench.oversubscription.live` prints the table alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.environment import clean_environment

_ROOT = Path(__file__).resolve().parents[2]
_MIB = 1 << 20
CAPACITIES_MIB = (100, 126)
POLICIES = ("driver", "lru", "auto")
STEPS = 10
_STEADY_STEPS = 4
_MACHINE = "h100-pcie5"
_ENOUGH_MIB = 1024


@dataclass(frozen=True)
class LiveRun:
    """The steps of one run."""

    policy: str
    capacity_mib: int
    steps: list[dict[str, Any]]

    def total(self, counter: str) -> int:
        return int(self.steps[-1][counter])

    def in_a_steady_step(self, counter: str) -> float:
        """The mean of the last steps."""
        return (self.steps[-1][counter] - self.steps[-1 - _STEADY_STEPS][counter]) / _STEADY_STEPS

    @property
    def losses(self) -> list[str]:
        return [step["loss"] for step in self.steps]

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "capacity_mib": self.capacity_mib,
            "to_device_bytes": self.total("migrated_bytes_to_device"),
            "to_host_bytes": self.total("migrated_bytes_to_host") + self.total("evicted_bytes"),
            "steady_to_device_bytes": self.in_a_steady_step("migrated_bytes_to_device"),
            "steady_faults": self.in_a_steady_step("faults_device"),
            "steady_step_ns": self.in_a_steady_step("now_ns"),
            "losses": self.losses,
        }


def run(policy: str, capacity_mib: int, machine: str = _MACHINE, steps: int = STEPS) -> LiveRun:
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", machine]
    command += ["--capacity", f"{capacity_mib}MiB", "--policy", policy, "--"]
    command += [sys.executable, "-m", "bench.oversubscription.live_steps_here", str(steps)]
    environment = {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
        # Of several threads the order of sums is not the same each time.
        "OMP_NUM_THREADS": "1",
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"{policy} on {capacity_mib} MiB failed:\n{finished.stderr}")
    return LiveRun(policy, capacity_mib, json.loads(finished.stdout))


def runs() -> Iterator[LiveRun]:
    """The first one has memory enough."""
    yield run("auto", _ENOUGH_MIB)
    for capacity_mib in CAPACITIES_MIB:
        for policy in POLICIES:
            yield run(policy, capacity_mib)


def compare(console: Console) -> dict[str, Any]:
    """The part of oversubscription.json that is about running programs."""
    measured = list(runs())
    enough, short = measured[0], measured[1:]
    _show(enough, short, console)
    return {
        "live_losses_equal": all(each.losses == enough.losses for each in short),
        "live": [each.as_json() for each in measured],
    }


def _show(enough: LiveRun, short: Sequence[LiveRun], console: Console) -> None:
    table = Table(title=f"GPT, {STEPS} steps, on a device that is too small")
    columns = ("device", "policy", "to device", "of a step", "faults of a step", "step", "losses")
    for column in columns:
        table.add_column(column)
    for each in short:
        slower = each.in_a_steady_step("now_ns") / enough.in_a_steady_step("now_ns")
        table.add_row(
            f"{each.capacity_mib} MiB", each.policy,
            f"{each.total('migrated_bytes_to_device') / _MIB:,.0f} MiB",
            f"{each.in_a_steady_step('migrated_bytes_to_device') / _MIB:,.1f} MiB",
            f"{each.in_a_steady_step('faults_device'):,.0f}", f"{slower:.2f} x",
            "equal" if each.losses == enough.losses else "[red]different[/red]",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    compare(Console())
