"""Compares where uvmalloc believes pages to be with where the simulated driver has them.

Each workload has 1.5 times the memory that its device has. After some steps another program takes
an eighth of the device. The count of wrong pages right after that shows what uvmalloc cannot know
then; the measure is the count after as many steps again. What it costs to ask the driver is counted
in calls: on the simulated device such a call takes no time.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.oversubscription import live
from bench.oversubscription.programs import FULL_SIZE
from bench.verdict import Target

_TIMES = 1.5
_STEPS = 6
_TAKEN_PARTS = 8


def _run(workload: str) -> dict[str, int]:
    needed_bytes = live.run(workload, "auto", 0, live.ENOUGH_MIB).managed_bytes
    capacity_mib = live.capacity_for(needed_bytes, _TIMES)
    taken_mib = capacity_mib // _TAKEN_PARTS
    module = ("bench.ground.residency_here", workload, str(_STEPS), str(taken_mib))
    return {"capacity_mib": capacity_mib, **live.run_module(module, "auto", capacity_mib)}


def measure(console: Console) -> dict[str, Any]:
    cases = {workload: _run(workload) for workload in FULL_SIZE}
    table = Table(title="Pages believed to be elsewhere, after another program took memory")
    for column in ("workload", "device, MiB", "pages", "at once", "after the next steps", "calls"):
        table.add_column(column)
    for workload, case in cases.items():
        table.add_row(
            workload,
            *(str(case[key]) for key in ("capacity_mib", "pages", "wrong_at_once", "wrong")),
            f"{case['location_calls']} beside {case['hint_calls']} for hints",
        )
    console.print(table)
    wrong = sum(case["wrong"] for case in cases.values())
    calls = max(case["location_calls"] / case["hint_calls"] for case in cases.values())
    return {
        "residency_wrong_pages": wrong,
        "residency_calls_ratio": calls,
        "residency": cases,
    }


def targets(keys: dict[str, Any]) -> list[Target]:
    return [Target("residency_wrong_pages", "", keys["residency_wrong_pages"], 0, at_most=True)]


if __name__ == "__main__":
    measure(Console())
