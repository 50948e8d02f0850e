"""Programs that run with less device memory than they need, under each policy.

The programs of bench/oversubscription/programs run on the simulated device, unmodified. uvmalloc
learns the step while it runs, without a recording. The memory that a program needs is the pages it
holds at the end of a run with enough memory. Figures are those of the steps after the sixth, in
virtual time, and of the same steps under each policy. As on a card, two runs may differ in the
order of the host's calls, but not in their results.

`python -m bench.oversubscription.live [PROGRAM...] [--times N] [--policy NAME] [--machine NAME]`
prints only the table of these programs, memories and policies, and writes build/bench/live.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.environment import clean_environment
from bench.oversubscription.programs import PROGRAMS
from bench.verdict import number

_ROOT = Path(__file__).resolve().parents[2]
_OUTPUT = _ROOT / "build" / "bench" / "live.json"
_MIB = 1 << 20
TIMES = (1.25, 1.5, 2.0)  # needed over available memory
POLICIES = ("driver", "lru", "auto", "planned")
_COMPARED = ("driver", "lru", "auto")
# The first steps allocate, and `auto` and `planned` learn during some more.
_STEPS_BEFORE = 6
MACHINE = "h100-pcie5"
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
        steady_steps = PROGRAMS[self.workload].steady_steps
        last = int(self.steps[-1][counter]) - int(self.steps[-1 - steady_steps][counter])
        return last / steady_steps

    @property
    def to_host_bytes_of_a_step(self) -> float:
        return self.of_a_step("migrated_bytes_to_host") + self.of_a_step("evicted_bytes")

    @property
    def link_bytes_of_a_step(self) -> float:
        """Returns the bytes that were moved, or used on the host over the link."""
        moved = self.of_a_step("migrated_bytes_to_device") + self.to_host_bytes_of_a_step
        return moved + self.of_a_step("remote_access_bytes")

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
            "in_place_bytes": self.of_a_step("remote_access_bytes"),
            "faults": self.of_a_step("faults_device"),
            "used_bytes": self.of_a_step("used_bytes"),
            "step_ns_of_each": [
                after["now_ns"] - before["now_ns"]
                for before, after in zip(self.steps, self.steps[1:], strict=False)
            ],
        }


def steps_of(workload: str) -> int:
    """Returns how many steps each run of a program has."""
    return _STEPS_BEFORE + PROGRAMS[workload].steady_steps


def run(
    workload: str, policy: str, times: float, capacity_mib: int,
    machine: str = MACHINE, devices: int = 1, settings: Mapping[str, str] = MappingProxyType({}),
) -> LiveRun:  # fmt: skip
    """Runs the steps of a program; the other arguments are those of run_module()."""
    module = ("bench.oversubscription.live_steps_here", workload, str(steps_of(workload)))
    printed = run_module(module, policy, capacity_mib, machine, devices, settings)
    return LiveRun(
        workload, policy, times, capacity_mib, printed["managed_bytes"], printed["steps"]
    )


def run_module(
    module: Sequence[str], policy: str | None, capacity_mib: int, machine: str = MACHINE,
    devices: int = 1, settings: Mapping[str, str] = MappingProxyType({}),
) -> Any:  # fmt: skip
    """Runs a module with arguments on a simulated machine, and returns the object it prints.

    Without a policy it runs with torch's own allocators. `settings` are further variables of the
    environment.
    """
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", machine]
    command += ["--devices", str(devices)]
    command += ["--capacity", f"{capacity_mib}MiB"]
    command += ["--policy", policy] if policy else ["--native"]
    command += ["--", sys.executable, "-m", *module]
    environment = {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
        # With several threads the order of sums varies.
        "OMP_NUM_THREADS": "1",
        **settings,
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        where = f"under {policy}" if policy else "without uvmalloc"
        raise RuntimeError(
            f"{' '.join(module)} {where} on {capacity_mib} MiB failed:\n{finished.stderr}"
        )
    return json.loads(finished.stdout)


def capacity_for(needed_bytes: int, times: float) -> int:
    """Returns the capacity, in MiB, of a device with room for needed_bytes / times of pages beside
    its context, which takes a 64th.
    """
    room_bytes = math.ceil(needed_bytes / times / _CHUNK_BYTES) * _CHUNK_BYTES
    return math.ceil(room_bytes * 64 / 63 / _CHUNK_BYTES) * _CHUNK_BYTES // _MIB


def runs_of(
    workload: str,
    all_times: Sequence[float] = TIMES,
    policies: Sequence[str] = _COMPARED,
    machine: str = MACHINE,
) -> Iterator[LiveRun]:
    """Yields the runs; the first one has enough memory."""
    enough = run(workload, "auto", 0, ENOUGH_MIB, machine)
    yield enough
    for times in all_times:
        capacity_mib = capacity_for(enough.managed_bytes, times)
        for policy in policies:
            yield run(workload, policy, times, capacity_mib, machine)


@dataclass(frozen=True)
class Case:
    """A workload with too little memory: its runs by policy, and the run with enough memory."""

    enough: LiveRun
    by_policy: dict[str, LiveRun]

    @property
    def workload(self) -> str:
        return self.enough.workload

    @property
    def times(self) -> float:
        return next(iter(self.by_policy.values())).times

    def slowdown(self, policy: str) -> float:
        return self.by_policy[policy].of_a_step("now_ns") / self.enough.of_a_step("now_ns")

    def ratio(self, policy: str, other: str) -> float:
        return self.slowdown(policy) / self.slowdown(other)

    @property
    def is_learnable(self) -> bool:
        return PROGRAMS[self.workload].learnable

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


def _mean(ratios: Iterable[float]) -> float | None:
    """Returns the geometric mean, or None of nothing."""
    values = list(ratios)
    return math.prod(values) ** (1 / len(values)) if values else None


def _over_driver(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns speed-ups of `auto`: the geometric mean of the programs for each memory, the least of
    these means, and the least speed-up.
    """
    speedups = [(case.times, case.ratio("driver", "auto")) for case in cases]
    means = {
        times: _mean(speedup for own, speedup in speedups if own == times)
        for times in sorted({times for times, _ in speedups})
    }
    return {
        "live_speedup_over_driver": min(means.values()),
        "live_least_speedup": min(speedup for _, speedup in speedups),
        "live_speedups": {f"{times:g}": mean for times, mean in means.items()},
    }


def _over_lru(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns the times of `auto` over those of `lru`: geometric means, and the worst."""
    worst = max(cases, key=lambda case: case.ratio("auto", "lru"))
    return {
        "auto_over_lru": {
            "learnable": _mean(case.ratio("auto", "lru") for case in cases if case.is_learnable),
            "all": _mean(case.ratio("auto", "lru") for case in cases),
        },
        "auto_over_lru_worst": worst.ratio("auto", "lru"),
        "auto_over_lru_worst_case": f"{worst.workload} at {worst.times:g} x",
    }


def keys_of(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns the figures of all cases, as far as their policies were measured."""
    measured = set.intersection(*(set(case.by_policy) for case in cases))
    keys: dict[str, Any] = {"live_results_equal": all(case.has_equal_results for case in cases)}
    if {"driver", "auto"} <= measured:
        keys |= _over_driver(cases)
    if {"lru", "auto"} <= measured:
        keys |= _over_lru(cases)
    if "auto" in measured:
        auto = [case.by_policy["auto"] for case in cases]
        learnable = [case.by_policy["auto"] for case in cases if case.is_learnable]
        keys["steady_faults_live"] = max(
            (each.of_a_step("faults_device") for each in learnable), default=None
        )
        keys["expert_bytes_ratio"] = max(
            (
                each.link_bytes_of_a_step / each.of_a_step("used_bytes")
                for each in auto
                if each.of_a_step("used_bytes") > 0
            ),
            default=None,
        )
    return keys


def measure(
    console: Console,
    workloads: Sequence[str] = tuple(PROGRAMS),
    all_times: Sequence[float] = TIMES,
    policies: Sequence[str] = _COMPARED,
    machine: str = MACHINE,
    output: Path | None = None,
) -> dict[str, Any]:
    """Returns the part of oversubscription.json about running programs, and writes it with the
    machine to `output`, by default build/bench/live.json.
    """
    runs = [each for name in workloads for each in runs_of(name, all_times, policies, machine)]
    cases = cases_of(runs)
    _show(cases, console)
    result = {**keys_of(cases), "live": [each.as_json() for each in runs]}
    output = output or _OUTPUT
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"machine": machine, **result}, indent=2) + "\n")
    return result


def _show(cases: Sequence[Case], console: Console) -> None:
    table = Table(title="Running programs on a device that is too small")
    columns = (
        "program", "needs", "device", "policy", "to device, MiB", "to host, MiB", "in place, MiB",
        "faults", "step", "over `lru`", "results",
    )  # fmt: skip
    for column in columns:
        table.add_column(column)
    for case in cases:
        for policy, each in case.by_policy.items():
            table.add_row(
                each.workload, f"{each.times:g} x", f"{each.capacity_mib} MiB", policy,
                f"{each.of_a_step('migrated_bytes_to_device') / _MIB:,.1f}",
                f"{each.to_host_bytes_of_a_step / _MIB:,.1f}",
                f"{each.of_a_step('remote_access_bytes') / _MIB:,.1f}",
                f"{each.of_a_step('faults_device'):,.0f}", f"{case.slowdown(policy):.2f} x",
                number(case.ratio(policy, "lru") if "lru" in case.by_policy else None),
                "equal" if case.has_equal_results else "[red]different[/red]",
            )  # fmt: skip
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--times", type=float, action="append", help="memory needed over memory")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--machine", default=MACHINE, help="as of `uvmalloc sim`")
    chosen = parser.parse_args()
    unknown = set(chosen.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"no program {', '.join(sorted(unknown))}; accepted: {', '.join(PROGRAMS)}")
    if any(times <= 0 for times in chosen.times or ()):
        parser.error("--times must be above 0")
    result = measure(
        Console(width=120),
        chosen.programs or tuple(PROGRAMS),
        chosen.times or TIMES,
        chosen.policy or _COMPARED,
        chosen.machine,
    )
    del result["live"]
    Console().print_json(data=result)


if __name__ == "__main__":
    main()
