"""Reads and shows reports on one or several processes (processes.py).

Every key may be absent: a report may come from another version.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.text import Text

from uvmalloc._cli import library_calls
from uvmalloc._cli.files import MOST_BYTES, open_found, read_regular
from uvmalloc._cli.tables import one_line, print_table
from uvmalloc.errors import CommandError
from uvmalloc.sizes import format_size

Report = dict[str, Any]

MEMORY_KINDS = ("host", "pinned", "device")

# Every report has at least one of these keys.
_TELLING = ("active", "facades", "simulator", "processes")

# Reasons why a hint was skipped.
_SKIPPED = {
    "already_there": "the pages were there",
    "no_credit": "the device was full",
    "policy": "the policy sends none",
    "coherent": "the device shares the host's memory",
    "shared_pages": "less than whole pages",
    "ping_pong": "the pages go back and forth",
}
_NOTABLE_BYTES = 1 << 20
_LEAST_MOVED_BYTES = 1 << 20  # smaller blocks share pages, so their tensors are copied
_LONGEST_PROGRAM = 160
_FIGURES_FORMAT = b"uvmalloc-fig-"


def read_report(file: Path) -> Report:
    """Reads a report in JSON, or the figures that a process has left (report.<pid>.figures)."""
    try:
        content = read_regular(file)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    return _parsed(content, file, file)


def read_found(file: Path) -> Report:
    """Same as read_report(), for a file in a folder that other users may write to."""
    with opened(file) as stream:
        return _parsed(stream.read(MOST_BYTES), file, Path(f"/proc/self/fd/{stream.fileno()}"))


def opened(file: Path) -> BinaryIO:
    """Same as open_found(), but raises CommandError for its errors."""
    try:
        return open_found(file)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None


def _parsed(content: bytes, file: Path, again: Path) -> Report:
    """`again` is a path that opens the same file once more."""
    if content.startswith(_FIGURES_FORMAT):
        return _read_figures(file, again)
    try:
        report = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{file} is not a report: {error}") from None
    if not isinstance(report, dict):
        raise CommandError(f"{file} is not a report: it is not a JSON object")
    return report


def _read_figures(file: Path, again: Path) -> Report:
    with contextlib.suppress(ValueError, RecursionError):
        report = library_calls.report_of(again)
        if report is not None:
            return report
    raise CommandError(f"{file} is of another version of uvmalloc, or damaged")


def main_report(folder: Path, pid: int) -> Report | None:
    """Returns the report of process `pid`, else the one with most allocations, else None."""
    own = folder / f"report.{pid}.json"
    if own.is_file():
        return read_report(own)
    reports = [read_report(file) for file in sorted(folder.glob("report.*.json"))]
    return max(reports, key=_allocations, default=None)


def show_report(report: Mapping[str, Any], console: Console) -> None:
    """Shows a report completely or not at all. `console` must not interpret markup."""
    if not any(key in report for key in _TELLING):
        raise CommandError("it holds no figures")
    try:
        with console.capture() as shown:
            processes = report.get("processes", [])
            for number, process in enumerate(processes, 1):
                _show(process, console, f"process {number} of {len(processes)}")
                console.print()
            _show(report, console, f"sum of {len(processes)} processes" if processes else None)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise CommandError(f"a value in it has another type: {error}") from None
    console.file.write(shown.get())
    console.file.flush()


def _show(report: Mapping[str, Any], console: Console, which: str | None) -> None:
    _show_title(report, console, which)
    if report.get("active", True) and "facades" in report:
        if "devices" in report:
            console.print(_line("devices", _devices(report["devices"])), soft_wrap=True)
            if places := _believed_and_real(report["devices"]):
                console.print(_line("on devices", places), soft_wrap=True)
        _show_facades(report, console)
        for line in _lines(report):
            console.print(line, soft_wrap=True)
    simulator = report.get("simulator")
    if simulator:
        _show_simulator(simulator, console)


def _devices(devices: Iterable[Mapping[str, Any]]) -> str:
    texts = [f"{device['name']} with {format_size(device['total_bytes'])}" for device in devices]
    return ", ".join(
        f"{texts.count(text)} x {text}" if texts.count(text) > 1 else text
        for text in dict.fromkeys(texts)
    )


def _believed_and_real(devices: Iterable[Mapping[str, Any]]) -> str:
    """Returns a line if the driver reports where the pages of a device are."""
    return ", ".join(
        f"device {number}: believed {format_size(device['believed_bytes'])} / "
        f"real {format_size(device['real_bytes'])}"
        for number, device in enumerate(devices)
        if "real_bytes" in device and device["believed_bytes"] + device["real_bytes"] != 0
    )


def _show_simulator(counters: Mapping[str, Any], console: Console) -> None:
    """Shows the simulated machine's counters in one line."""
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


def _show_title(report: Mapping[str, Any], console: Console, which: str | None) -> None:
    title = Text("uvmalloc", style="bold")
    parts = [which] if which else []
    if which and report.get("rank") is not None:
        parts.append(f"rank {report['rank']}")
    if which and "pid" in report:
        parts.append(f"pid {report['pid']}")
    if parts:
        title.append(f" ({', '.join(parts)})")
    program = report.get("program")
    if program:
        title.append(f": {one_line(str(program), _LONGEST_PROGRAM)}", style="not bold")
    if "wall_seconds" in report:
        title.append(f", {report['wall_seconds']:.1f} s", style="not bold")
    ended = _ended(report.get("ended", {}))
    if ended:
        title.append(f", {ended}", style="red")
    if not report.get("active", True):
        title.append(f", not active: {report.get('reason') or 'no reason given'}", style="yellow")
    elif "peak_bytes" in report:
        title.append(f", peak {format_size(report['peak_bytes'])}", style="not bold")
        if "processes" in report:
            title.append(" (the processes' own peaks added up)", style="not bold")
        if report.get("budget_bytes"):
            budget = format_size(report["budget_bytes"])
            title.append(f" of a budget of {budget}", style="not bold")
    console.print(title, soft_wrap=True)


def _ended(ended: Mapping[str, Any]) -> str:
    """Says how a process ended if it did not end well, else returns an empty text."""
    how = ended.get("how")
    if how == "signal":
        return f"ended by {ended.get('signal')}"
    if how == "exit" and ended.get("exit_code"):
        return f"ended with exit code {ended['exit_code']}"
    return {
        "exec": "went on as another program",
        "running": "still running",
        "unknown": "ended by a signal, a crash or os._exit",
    }.get(how or "", "")


def _show_facades(report: Mapping[str, Any], console: Console) -> None:
    columns = ("memory", "allocations", "from cache", "allocated", "peak", "live", "cached")
    facades = report.get("facades", {})
    names = [*MEMORY_KINDS, *(other for other in facades if other not in MEMORY_KINDS)]
    rows = []
    for name in names:
        facade = facades.get(name, {})
        allocations, hits = facade.get("allocations", 0), facade.get("cache_hits", 0)
        rows.append(
            (
                name,
                f"{allocations:,}",
                f"{100 * hits / allocations:.0f} %" if allocations else "",
                format_size(facade.get("allocated_bytes", 0)),
                format_size(facade.get("peak_bytes", 0)),
                format_size(facade.get("live_bytes", 0)),
                format_size(facade.get("cached_bytes", 0)),
            )
        )
    print_table(console, columns, rows, numbers_from=1)


def _lines(report: Mapping[str, Any]) -> Iterable[Text]:
    yield _line("device moves", _moves(report))
    yield _line("copied by moves", _copies(report))
    if small := _mostly_small(report):
        yield _line("note", small)
    conversions = report.get("conversions", {})
    if conversions.get("count"):
        yield _line(
            "converted at a first move",
            f"{conversions['count']:,} CPU tensors from before CUDA was initialised "
            f"({format_size(conversions.get('bytes', 0))})",
        )
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
    for group in report.get("groups", []):
        yield _line(
            f"group {group['name']}",
            f"{group['state']}, {format_size(group['bytes'])}, of which "
            f"{format_size(group['device_bytes'])} are on devices and "
            f"{format_size(group.get('file_bytes', 0))} in a file; "
            f"slept {group['sleeps']:,} times: "
            f"{format_size(group['left_bytes'])} copied, {format_size(group['kept_bytes'])} not",
        )
    calls = {name: count for name, count in report.get("driver_calls", {}).items() if count}
    if calls:
        yield _line("driver calls", _counts(calls))
    unmanaged = report.get("host_unmanaged", {})
    if unmanaged.get("allocations"):
        small = f"below {format_size(report.get('threshold_bytes', 0))}"
        yield _line(
            "from malloc",
            f"{unmanaged['allocations']:,} host allocations {small}, or from before uvmalloc was "
            f"active ({format_size(unmanaged.get('allocated_bytes', 0))} in all, freed ones too)",
        )
    yield from _past(report)
    if report.get("threads_left_out"):
        yield _line(
            "incomplete",
            f"allocations of {report['threads_left_out']} threads are missing",
            alarming=True,
        )
    if report.get("out_of_memory"):
        yield _line("out of memory", f"{report['out_of_memory']:,} times", alarming=True)


def _past(report: Mapping[str, Any]) -> Iterable[Text]:
    """Yields lines about allocations of the program that uvmalloc did not serve."""
    calls = report.get("cuda_calls")
    if calls:
        yield from _allocation_calls(calls)
    for file in report.get("static_cuda_runtimes") or []:
        yield _line(
            "not served by uvmalloc",
            f"{file} contains CUDA's static runtime: its runtime calls are not intercepted, "
            "its driver calls are",
        )
    if report.get("framework") is False:
        if not calls:
            yield _line(
                "not served by uvmalloc", "not counted; UVMALLOC_CUDA=1 would serve CUDA's calls"
            )
        return
    native_allocations = report.get("native_allocations", {})
    if native_allocations is None:
        why = "unknown: only a program that ends normally counts them"
        yield _line("not served by uvmalloc", why)
        return
    made = {name: count for name, count in native_allocations.items() if count}
    text = f"{_counts(made)} by torch's own allocators" if made else "0 allocations"
    yield _line("not served by uvmalloc", text, alarming=bool(made))


def _allocation_calls(calls: Mapping[str, Mapping[str, int]]) -> Iterable[Text]:
    """Yields lines with the served and the forwarded calls of the vendors' allocation functions."""
    for vendor, prefix in (("CUDA", "cu"), ("HIP", "hip")):
        of_vendor = {name: counts for name, counts in calls.items() if name.startswith(prefix)}
        yield from _calls_of(vendor, of_vendor)


def _calls_of(vendor: str, calls: Mapping[str, Mapping[str, int]]) -> Iterable[Text]:
    served = {name: counts["served"] for name, counts in calls.items() if counts.get("served")}
    if served:
        yield _line(f"{vendor} calls served", _counts(served))
    for outcome, words in (
        ("excluded", "excluded"),
        ("no_memory", f"forwarded to {vendor} for lack of managed memory"),
        ("left", f"forwarded to {vendor} on purpose"),
        ("beyond_limit", "refused because of a budget"),
    ):
        passed = {name: counts[outcome] for name, counts in calls.items() if counts.get(outcome)}
        if passed:
            yield _line("not served by uvmalloc", f"{_counts(passed)}: {words}")


def _mostly_small(report: Mapping[str, Any]) -> str:
    """Returns a note if most of the bytes moved were copied because their tensors were small."""
    copies = report.get("copies_by_moves", {})
    small = copies.get("by_reason", {}).get("small_block", {}).get("bytes", 0)
    moved = copies.get("bytes", 0) + report.get("moves", {}).get("bytes", 0)
    if small < _NOTABLE_BYTES or 2 * small < moved:
        return ""
    return (
        f"of {format_size(moved)} that went to another device, {format_size(small)} were copied: "
        f"tensors below {format_size(_LEAST_MOVED_BYTES)} share pages with others. With "
        "UVMALLOC_MOVE=alias, those from UVMALLOC_HOST_THRESHOLD on move without a copy"
    )


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
        parts.append(f"skipped: {_counts(skipped, _SKIPPED)}")
    if hints.get("failed"):
        parts.append(f"failed: {hints['failed']:,}")
    return "; ".join(parts)


def _counts(counts: Mapping[str, int], words: Mapping[str, str] | None = None) -> str:
    """Lists counts, the largest first, each with its explanation in `words`, if there is one."""
    explained = {name: f" ({text})" for name, text in (words or {}).items()}
    return ", ".join(
        f"{name} {count:,}{explained.get(name, '')}"
        for name, count in sorted(counts.items(), key=lambda item: -item[1])
    )


def _line(label: str, text: str, alarming: bool = False) -> Text:
    return Text.assemble((f"{label}: ", "bold"), (text, "red" if alarming else ""))
