"""Counts the driver's calls for hints in a planned step, with batches and without.

Each workload runs with less device memory than it needs, as it is and on a simulated driver that
refuses the batched calls, so that uvmalloc moves pages one by one. Figures are those of the last
steps, in virtual time. On a machine whose pages need no hints both runs make no call, and the
ratio of calls is null.

`python -m bench.ground.hints [WORKLOAD...] [--times N] [--machine NAME]` measures only these.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.oversubscription import live
from bench.oversubscription.programs import PROGRAMS
from bench.verdict import Target, number

WORKLOADS = ("gpt", "cnn", "recommender")
TIMES = (1.25, 1.5, 2.0)  # needed over available memory
MACHINES = ("h100-pcie5", "rtx4090-pcie4", "gh200")
_POLICY = "auto"
_WITHOUT_BATCHES = {
    "UVMSIM_REFUSED_CALLS": "cuMemPrefetchBatchAsync,cuMemDiscardAndPrefetchBatchAsync"
}


@dataclass(frozen=True)
class Case:
    """A workload on a machine with too little memory: with batches, and with single calls."""

    machine: str
    batched: live.LiveRun
    single: live.LiveRun

    @property
    def calls_ratio(self) -> float | None:
        calls = self.single.of_a_step("hint_calls")
        return self.batched.of_a_step("hint_calls") / calls if calls > 0 else None

    @property
    def step_time_ratio(self) -> float:
        return self.batched.of_a_step("now_ns") / self.single.of_a_step("now_ns")

    def as_json(self) -> dict[str, Any]:
        def figures_of(run: live.LiveRun) -> dict[str, float]:
            return {
                "hint_calls": run.of_a_step("hint_calls"),
                "order_calls": run.of_a_step("order_calls"),
                "step_ns": run.of_a_step("now_ns"),
            }

        return {
            "workload": self.batched.workload,
            "machine": self.machine,
            "times": self.batched.times,
            "calls_ratio": self.calls_ratio,
            "step_time_ratio": self.step_time_ratio,
            "batched": figures_of(self.batched),
            "single": figures_of(self.single),
        }


def run_cases(
    workloads: Sequence[str] = WORKLOADS,
    all_times: Sequence[float] = TIMES,
    machines: Sequence[str] = MACHINES,
) -> list[Case]:
    cases = []
    for workload in workloads:
        needed_bytes = live.run(workload, _POLICY, 0, live.ENOUGH_MIB).managed_bytes
        for times in all_times:
            capacity_mib = live.capacity_for(needed_bytes, times)
            for machine in machines:
                batched, single = (
                    live.run(workload, _POLICY, times, capacity_mib, machine, settings=settings)
                    for settings in ({}, _WITHOUT_BATCHES)
                )
                cases.append(Case(machine, batched, single))
    return cases


def keys_of(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns the worst ratios, and the figures of each case."""
    ratios = [case.calls_ratio for case in cases if case.calls_ratio is not None]
    return {
        "hint_calls_ratio": max(ratios, default=None),
        "hint_step_time_ratio": max(case.step_time_ratio for case in cases),
        "hint_results_equal": all(case.batched.results == case.single.results for case in cases),
        "hints": [case.as_json() for case in cases],
    }


def targets(keys: dict[str, Any]) -> list[Target]:
    return [
        Target("hint_calls_ratio", "", keys["hint_calls_ratio"], 0.25, at_most=True),
        Target("hint_step_time_ratio", "", keys["hint_step_time_ratio"], 1, at_most=True),
    ]


def show(keys: dict[str, Any], console: Console) -> None:
    table = Table(title="Calls for hints of a planned step, in batches and one by one")
    columns = (
        "workload", "needs", "machine", "calls", "one by one", "ratio", "step, ms", "one by one",
        "ratio",
    )  # fmt: skip
    for column in columns:
        table.add_column(column)
    for case in keys["hints"]:
        batched, single = case["batched"], case["single"]
        table.add_row(
            case["workload"], f"{case['times']:g} x", case["machine"],
            f"{batched['hint_calls']:,.0f}", f"{single['hint_calls']:,.0f}",
            number(case["calls_ratio"]), number(batched["step_ns"] / 1e6),
            number(single["step_ns"] / 1e6), number(case["step_time_ratio"]),
        )  # fmt: skip
    console.print(table)


def measure(console: Console) -> dict[str, Any]:
    """Returns the part of ground.json about hints."""
    keys = keys_of(run_cases())
    show(keys, console)
    return keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--times", type=float, action="append", help="memory needed over memory")
    parser.add_argument("--machine", action="append", help=", ".join(MACHINES))
    chosen = parser.parse_args()
    unknown = set(chosen.workloads) - set(PROGRAMS)
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; accepted: {', '.join(PROGRAMS)}")
    cases = run_cases(
        chosen.workloads or WORKLOADS, chosen.times or TIMES, chosen.machine or MACHINES
    )
    show(keys_of(cases), Console(width=120))


if __name__ == "__main__":
    main()
