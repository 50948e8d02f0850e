"""Prints the tables of a run."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.allocators.engines import NAMES
from bench.allocators.measure import Absent, Results
from bench.verdict import Target, number, verdict_table

_TITLES = {
    "pair_ns": "Allocation and free from the cache, ns per pair",
    "two_thread_scaling": "Throughput of two threads over that of one",
    "two_thread_delayed_percent": "... and the time in which a thread had no processor, %",
    "live_scaling": "Pair with many live blocks over pair with few",
    "churn_ns": "Random churn, ns per operation",
    "random_grid_ns": "Random grid, ns per operation",
    "replay_ns": "Replay, ns per operation",
    "touched_over_live": "Touched (others: reserved) over live bytes, at their peaks",
    "touched_over_live_mean": "... on average over random beginnings",
    "touched_over_live_most": "... at most of them",
    "touched_over_live_discard": "... with the least budget that the whole trace runs through with",
    "budget_percent": "... that budget, from 102 % of the peak of live bytes on",
    "discard_calls": "... and the discards that this took, of the whole run",
    "least_budget_mean": "Least budget with which no request fails, over live bytes, on average",
    "least_budget_most": "... at most of the random beginnings",
    "steady_driver_calls": "Driver allocations, frees and advice per step, after the second",
    "prefetches_per_move": "Prefetches sent to the driver for one move",
    "metadata_bytes": "Private memory per live block, bytes",
    "metadata_percent": "Private memory, % of live bytes",
    "trace_cost": "With a trace over without",
    "trace_event_ns": "What an event of a trace costs, ns",
    "stand_in_call_ns": "Calls of the stand-in, ns, in every allocator that makes them",
    "instructions": "Instructions per pair",
}


def show(results: Results, verdict: list[Target], gaps: list[Absent], console: Console) -> None:
    """Prints all titled tables, the targets, and the reasons for missing values."""
    for key, title in _TITLES.items():
        if key in results:
            console.print(_table(title, results[key]))
    console.print(verdict_table(verdict))
    for allocator, reason in dict.fromkeys((gap.allocator, gap.reason) for gap in gaps):
        absent = [gap for gap in gaps if (gap.allocator, gap.reason) == (allocator, reason)]
        missing = dict.fromkeys(_name(gap, results) for gap in absent)
        console.print(f"no {', '.join(missing)} of {allocator}: {reason}", markup=False)


def _name(gap: Absent, results: Results) -> str:
    """Returns the key, with the case if other cases of the key have values."""
    values = results.get(gap.key, {}).get(gap.allocator, {}).values()
    is_whole = all(value is None for value in values)
    return gap.key if is_whole else f"{gap.key} ({gap.case})"


def _table(title: str, of_key: dict[str, dict[str, float | None]]) -> Table:
    table = Table(title=title)
    table.add_column("case")
    names = [name for name in NAMES if name in of_key]
    for name in names:
        table.add_column(name, justify="right")
    for case in dict.fromkeys(case for cases in of_key.values() for case in cases):
        table.add_row(case, *(number(of_key[name].get(case)) for name in names))
    return table
