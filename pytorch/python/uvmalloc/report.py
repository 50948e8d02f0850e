"""Reading and showing what libuvmalloc.so and the simulator wrote when a program ended.

Every key may be absent: a report may come from another version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from uvmalloc.errors import CommandError
from uvmalloc.sizes import format_size

Report = dict[str, Any]

_FACADES = ("host", "pinned", "device")


def read_report(file: Path) -> Report:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{file} is no report: {error}") from None
    if not isinstance(report, dict):
        raise CommandError(f"{file} is no report: it holds no JSON object")
    return report


def main_report(folder: Path, pid: int) -> Report | None:
    """The report of process `pid`, else that of the process with most allocations, else None."""
    own = folder / f"report.{pid}.json"
    if own.is_file():
        return read_report(own)
    reports = [read_report(file) for file in sorted(folder.glob("report.*.json"))]
    return max(reports, key=_allocations, default=None)


def show_report(report: Mapping[str, Any], console: Console) -> None:
    """Shows one program's report, all of it or none; `console` must not interpret markup."""
    try:
        with console.capture() as shown:
            _show(report, console)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise CommandError(f"a value in it has another type: {error}") from None
    console.file.write(shown.get())
    console.file.flush()


def _show(report: Mapping[str, Any], console: Console) -> None:
    _show_title(report, console)
    if report.get("active", True):
        console.print(_facade_table(report))
        for line in _lines(report):
            console.print(line, soft_wrap=True)
    simulator = report.get("simulator")
    if simulator:
        _show_simulator(simulator, console)


def _show_simulator(counters: Mapping[str, Any], console: Console) -> None:
    """One line of the simulated machine's counters."""
    counters = counters.get("counters", counters)
    faults = counters.get("fault_pages_device", 0) + counters.get("fault_pages_host", 0)
    to_device = format_size(counters.get("migrated_bytes_to_device", 0))
    to_host = format_size(counters.get("migrated_bytes_to_host", 0))
    between = counters.get("migrated_bytes_between_devices", 0)
    parts = [
        f"{counters.get('kernels', 0):,} kernels",
        f"{faults:,} faulted pages",
        f"migrated {to_device} to devices, {to_host} to the host"
        + (f", {format_size(between)} between devices" if between else ""),
        f"evicted {format_size(counters.get('evicted_bytes', 0))}",
        f"copied {format_size(counters.get('copy_bytes', 0))}",
    ]
    console.print(_line("simulator", "; ".join(parts)), soft_wrap=True)


def _allocations(report: Mapping[str, Any]) -> int:
    return sum(facade.get("allocations", 0) for facade in report.get("facades", {}).values())


def _show_title(report: Mapping[str, Any], console: Console) -> None:
    title = Text("uvmalloc", style="bold")
    program = report.get("program")
    if program:
        title.append(f": {program}", style="not bold")
    if "wall_seconds" in report:
        title.append(f", {report['wall_seconds']:.1f} s", style="not bold")
    if not report.get("active", True):
        title.append(f", not active: {report.get('reason') or 'no reason given'}", style="yellow")
    elif "peak_bytes" in report:
        title.append(f", peak {format_size(report['peak_bytes'])}", style="not bold")
        if report.get("budget_bytes"):
            title.append(f" of {format_size(report['budget_bytes'])}", style="not bold")
    console.print(title, soft_wrap=True)


def _facade_table(report: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("memory")
    for column in ("allocations", "from cache", "allocated", "peak", "live at exit"):
        table.add_column(column, justify="right")
    facades = report.get("facades", {})
    for name in [*_FACADES, *(other for other in facades if other not in _FACADES)]:
        facade = facades.get(name, {})
        allocations, hits = facade.get("allocations", 0), facade.get("cache_hits", 0)
        table.add_row(
            name,
            f"{allocations:,}",
            f"{100 * hits / allocations:.0f} %" if allocations else "",
            format_size(facade.get("allocated_bytes", 0)),
            format_size(facade.get("peak_bytes", 0)),
            format_size(facade.get("live_bytes", 0)),
        )
    return table


def _lines(report: Mapping[str, Any]) -> Iterable[Text]:
    yield _line("device moves", _moves(report))
    yield _line("copied by moves", _copies(report))
    materializations = report.get("materializations", {})
    if materializations.get("copies") or materializations.get("steals"):
        yield _line(
            "written after a move",
            f"{materializations.get('copies', 0):,} copied "
            f"({format_size(materializations.get('bytes', 0))}), "
            f"{materializations.get('steals', 0):,} taken over without a copy",
        )
    prefetches = report.get("prefetches", {})
    yield _line("prefetches", _hints(prefetches, f" ({format_size(prefetches.get('bytes', 0))})"))
    yield _line("advice", _hints(report.get("advice", {})))
    calls = {name: count for name, count in report.get("driver_calls", {}).items() if count}
    if calls:
        yield _line("driver calls", _counts(calls))
    unmanaged = report.get("host_unmanaged", {})
    if unmanaged.get("allocations"):
        yield _line(
            "small or early host",
            f"{unmanaged['allocations']:,} allocations "
            f"({format_size(unmanaged.get('allocated_bytes', 0))}) left to the C library",
        )
    native = {name: count for name, count in report.get("native_allocations", {}).items() if count}
    yield _line(
        "past uvmalloc", _counts(native) if native else "0 allocations", alarming=bool(native)
    )
    if report.get("out_of_memory"):
        yield _line("out of memory", f"{report['out_of_memory']:,} times", alarming=True)


def _moves(report: Mapping[str, Any]) -> str:
    moves = report.get("moves", {})
    directions = [
        f"{moves[key]:,} {words}"
        for key, words in (
            ("host_to_device", "to a device"),
            ("device_to_host", "to the host"),
            ("device_to_device", "between devices"),
        )
        if moves.get(key)
    ]
    detail = f" ({', '.join(directions)})" if directions else ""
    moved = format_size(moves.get("bytes", 0))
    return f"{moves.get('total', 0):,}{detail}, {moved} moved without a copy"


def _copies(report: Mapping[str, Any]) -> str:
    copies = report.get("copies_by_moves", {})
    threshold = report.get("threshold_bytes")
    text = f"{format_size(copies.get('bytes', 0))} in {copies.get('count', 0):,} copies"
    if threshold:
        large = copies.get("bytes_at_or_above_threshold", 0)
        text += f", {format_size(large)} of it in tensors of {format_size(threshold)} or more"
    reasons = {
        reason: f"{entry.get('count', 0):,} ({format_size(entry.get('bytes', 0))})"
        for reason, entry in copies.get("by_reason", {}).items()
        if entry.get("count")
    }
    if reasons:
        text += "; " + ", ".join(f"{reason} {count}" for reason, count in reasons.items())
    return text


def _hints(hints: Mapping[str, Any], detail: str = "") -> str:
    parts = [f"{hints.get('sent', 0):,} sent{detail}"]
    skipped = {reason: count for reason, count in hints.get("skipped", {}).items() if count}
    if skipped:
        parts.append(f"skipped: {_counts(skipped)}")
    if hints.get("failed"):
        parts.append(f"failed: {hints['failed']:,}")
    return "; ".join(parts)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1])
    )


def _line(label: str, text: str, alarming: bool = False) -> Text:
    return Text.assemble((f"{label}: ", "bold"), (text, "red" if alarming else ""))
