"""Compares allocators: measures, derives, judges, writes and shows."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from uvmalloc.libraries import Libraries

from bench.allocators.derived import add_derived
from bench.allocators.engines import CAPACITY_BYTES, EARLIER, OURS, Program, find_programs
from bench.allocators.faults import faults
from bench.allocators.instructions import instructions_per_pair
from bench.allocators.measure import Absent, Results, measure
from bench.allocators.plan import SEED, Level, questions
from bench.allocators.server import RequestError
from bench.allocators.show import show
from bench.allocators.targets import targets
from bench.charts import draw_bars
from bench.traces import unpack


def compare(
    libraries: Libraries,
    level: Level,
    wanted: Sequence[str],
    traces: Mapping[str, Path],
    count_instructions: bool,
    file: Path,
    console: Console,
    earlier: Path | None = None,
) -> list[str]:
    """Measures at `level` the allocators of `wanted` that this build has. Writes `file`, and charts
    beside it. Returns a line for each allocator and replay with wrong allocations. A missed target
    is no failure here; the caller decides.
    """
    found, not_built = find_programs(libraries, earlier)
    programs = {name: program for name, program in found.items() if name in wanted}
    load_before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as scratch,
        console.status("measuring") as status,
    ):
        measured = measure(
            programs,
            questions(level, unpack(traces, Path(scratch)), Path(scratch)),
            level.rounds,
            lambda done, of: status.update(f"measuring: {done} of {of} questions"),
        )
    results, gaps = measured.results(), measured.gaps()
    add_derived(results, gaps, level)
    if count_instructions:
        for name in (OURS, EARLIER):
            if name in measured.versions:
                _add_instructions(results, gaps, programs[name], level)
    verdict = targets(results)
    wrong = faults(results)
    document = {
        "level": level.name,
        "rounds": level.rounds,
        "seed": SEED,
        "processors": os.cpu_count(),
        "load_average": [load_before, os.getloadavg()[0]],
        "device_capacity_bytes": CAPACITY_BYTES,
        "allocators": measured.versions,
        "not_compared": {
            name: why for name, why in (not_built | measured.not_started).items() if name in wanted
        },
        "faults": wrong,
        "absent": [asdict(gap) for gap in gaps],
        "targets": [{**asdict(target), "met": target.met} for target in verdict],
        **results,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")
    show(results, verdict, gaps, console)
    for name, why in document["not_compared"].items():
        console.print(f"{name} is not compared: {why}", markup=False)
    for line in wrong:
        console.print(f"[red]wrong[/red]: {escape(line)}")
    _draw(results, file)
    return wrong


def _add_instructions(results: Results, gaps: list[Absent], program: Program, level: Level) -> None:
    cases = results.setdefault("instructions", {}).setdefault(program.allocator, {})
    for size in level.sizes:
        try:
            cases[size] = instructions_per_pair(program, size)
        except RequestError as failure:
            cases[size] = None
            gaps.append(Absent("instructions", program.allocator, size, str(failure)))


def _draw(results: Results, file: Path) -> None:
    pairs = results.get("pair_ns", {})
    ours = pairs.get(OURS, {})
    ratios = {
        allocator: {
            case: value / ours[case]
            for case, value in cases.items()
            if value is not None and ours.get(case)
        }
        for allocator, cases in pairs.items()
        if allocator != OURS
    }
    if ratios:
        title = "Allocate and free from the cache, one thread"
        draw_bars(ratios, title, "other / uvmalloc, time per pair", file)
