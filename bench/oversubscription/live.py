"""Programs that run with less device memory than they need, under each policy.

The workloads of steps_here.py run on the simulated device, unmodified. uvmalloc learns the step
while it runs, without a recording. The memory that a workload needs is the pages it holds at the
end of a run with enough memory. Figures are those of the last steps, in virtual time. As on a card,
two runs may differ in the order of the host's calls, but not in their results.

`python -m bench.oversubscription.live [WORKLOAD...] [--times N] [--policy NAME]` prints only the
table of these workloads, memories and policies, and writes build/bench/live.json.
"""

from __future__ import annotations

import argparse
import json
import math
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
_OUTPUT = _ROOT / "build" / "bench" / "live.json"
_MIB = 1 << 20
WORKLOADS = ("gpt", "cnn", "recommender", "generation")
TIMES = (1.25, 1.5, 2.0)  # needed over available memory
# The number of steps, by policy, until the last steps are alike. The first steps allocate, and
# `auto` and `planned` learn during some more.
POLICIES = {"driver": 3, "lru": 3, "auto": 6, "planned": 6}
_STEADY_STEPS = 2
_MACHINE = "h100-pcie5"
ENOUGH_MIB = 16 << 10
_CHUNK_BYTES = 2 << 20


@dataclass(frozen=True)
class LiveRun:
    """The steps of one run. `times` is needed memory over available memory."""

    workload: str
    policy: str
    times: float
    capacity_mib: int
    managed_bytes: int
    steps: list[dict[str, Any]]

    def of_a_step(self, counter: str) -> float:
        """Returns the mean of the last steps."""
        last = int(self.steps[-1][counter]) - int(self.steps[-1 - _STEADY_STEPS][counter])
        return last / _STEADY_STEPS

    @property
    def to_host_bytes_of_a_step(self) -> float:
        return self.of_a_step("migrated_bytes_to_host") + self.of_a_step("evicted_bytes")

    @property
    def results(self) -> list[str]:
        return [step["result"] for step in self.steps]

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "policy": self.policy,
            "times": self.times,
            "capacity_mib": self.capacity_mib,
            "managed_bytes": self.managed_bytes,
            "step_ns": self.of_a_step("now_ns"),
            "to_device_bytes": self.of_a_step("migrated_bytes_to_device"),
            "to_host_bytes": self.to_host_bytes_of_a_step,
            "faults": self.of_a_step("faults_device"),
            "step_ns_of_each": [
                after["now_ns"] - before["now_ns"]
                for before, after in zip(self.steps, self.steps[1:], strict=False)
            ],
        }


def run(
    workload: str, policy: str, steps: int, times: float, capacity_mib: int,
    machine: str = _MACHINE, devices: int = 1,
) -> LiveRun:  # fmt: skip
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", machine]
    command += ["--devices", str(devices)]
    command += ["--capacity", f"{capacity_mib}MiB", "--policy", policy, "--", sys.executable, "-m"]
    command += ["bench.oversubscription.live_steps_here", workload, str(steps)]
    environment = {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
        # With several threads the order of sums varies.
        "OMP_NUM_THREADS": "1",
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(
            f"{workload} under {policy} on {capacity_mib} MiB failed:\n{finished.stderr}"
        )
    printed = json.loads(finished.stdout)
    return LiveRun(
        workload, policy, times, capacity_mib, printed["managed_bytes"], printed["steps"]
    )


def capacity_for(needed_bytes: int, times: float) -> int:
    """Returns the capacity, in MiB, of a device with room for needed_bytes / times of pages beside
    its context, which takes a 64th.
    """
    room_bytes = math.ceil(needed_bytes / times / _CHUNK_BYTES) * _CHUNK_BYTES
    return math.ceil(room_bytes * 64 / 63 / _CHUNK_BYTES) * _CHUNK_BYTES // _MIB


def runs_of(
    workload: str, all_times: Sequence[float] = TIMES, policies: Sequence[str] = tuple(POLICIES)
) -> Iterator[LiveRun]:
    """Yields the runs; the first one has enough memory."""
    enough = run(workload, "auto", max(POLICIES.values()), 0, ENOUGH_MIB)
    yield enough
    for times in all_times:
        capacity_mib = capacity_for(enough.managed_bytes, times)
        for policy in policies:
            yield run(workload, policy, POLICIES[policy], times, capacity_mib)


@dataclass(frozen=True)
class Case:
    """A workload with too little memory: its runs by policy, and the run with enough memory."""

    enough: LiveRun
    by_policy: dict[str, LiveRun]

    @property
    def times(self) -> float:
        return self.by_policy["driver"].times

    def slowdown(self, policy: str) -> float:
        return self.by_policy[policy].of_a_step("now_ns") / self.enough.of_a_step("now_ns")

    def speedup(self, policy: str) -> float:
        return self.slowdown("driver") / self.slowdown(policy)

    @property
    def has_equal_results(self) -> bool:
        return all(
            each.results == self.enough.results[: len(each.results)]
            for each in self.by_policy.values()
        )


def cases_of(measured: Sequence[LiveRun]) -> list[Case]:
    """Returns cases by workload and memory. A workload's runs follow its run with enough memory."""
    cases: dict[tuple[str, float], Case] = {}
    enough = measured[0]
    for each in measured:
        if each.times == 0:
            enough = each
        else:
            case = cases.setdefault((each.workload, each.times), Case(enough, {}))
            case.by_policy[each.policy] = each
    return list(cases.values())


def keys_of(cases: Sequence[Case], policy: str = "auto") -> dict[str, Any]:
    """Returns speed-ups over the driver: the geometric mean over workloads for each memory, the
    least of these means, and the least speed-up.
    """
    means: dict[float, float] = {}
    for times in sorted({case.times for case in cases}):
        speedups = [case.speedup(policy) for case in cases if case.times == times]
        means[times] = math.prod(speedups) ** (1 / len(speedups))
    return {
        "live_speedup_over_driver": min(means.values()),
        "live_least_speedup": min(case.speedup(policy) for case in cases),
        "live_speedups": {f"{times:g}": mean for times, mean in means.items()},
        "live_results_equal": all(case.has_equal_results for case in cases),
    }


def compare(console: Console) -> dict[str, Any]:
    """Returns the part of oversubscription.json about running programs."""
    return _report([each for workload in WORKLOADS for each in runs_of(workload)], console)


def _report(measured: Sequence[LiveRun], console: Console) -> dict[str, Any]:
    cases = cases_of(measured)
    _show(cases, console)
    return {**keys_of(cases), "live": [each.as_json() for each in measured]}


def _show(cases: Sequence[Case], console: Console) -> None:
    table = Table(title="Running programs on a device that is too small")
    columns = (
        "workload", "needs", "device", "policy", "to device, MiB", "to host, MiB", "faults", "step",
        "results",
    )  # fmt: skip
    for column in columns:
        table.add_column(column)
    for case in cases:
        for policy, each in case.by_policy.items():
            table.add_row(
                each.workload, f"{each.times:g} x", f"{each.capacity_mib} MiB", policy,
                f"{each.of_a_step('migrated_bytes_to_device') / _MIB:,.1f}",
                f"{each.to_host_bytes_of_a_step / _MIB:,.1f}",
                f"{each.of_a_step('faults_device'):,.0f}", f"{case.slowdown(policy):.2f} x",
                "equal" if case.has_equal_results else "[red]different[/red]",
            )  # fmt: skip
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--times", type=float, action="append", help="memory needed over memory")
    parser.add_argument("--policy", choices=list(POLICIES), action="append")
    chosen = parser.parse_args()
    unknown = set(chosen.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; accepted: {', '.join(WORKLOADS)}")
    policies = chosen.policy or list(POLICIES)
    if not {"driver", "auto"} <= set(policies):
        parser.error("the policies driver and auto are compared, so both are needed")
    measured = [
        each
        for workload in chosen.workloads or WORKLOADS
        for each in runs_of(workload, chosen.times or TIMES, policies)
    ]
    result = _report(measured, Console(width=120))
    _OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    _OUTPUT.write_text(json.dumps(result, indent=2) + "\n")
    del result["live"]
    Console().print_json(data=result)


if __name__ == "__main__":
    main()
