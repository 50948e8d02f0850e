"""Shows running programs live: memory by kind, moves, faults and traffic per second.

Processes under `uvmalloc run` and `uvmalloc sim` keep the figures in mapped files (processes.py),
so showing them costs the programs nothing. A child with the rights of the program's user reads
them. For a file that blocks or is damaged, one line is shown.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from uvmalloc._cli.credentials import Answer, Credentials, credentials_of
from uvmalloc._cli.library_calls import figures_reader
from uvmalloc._cli.processes import running, stat_fields
from uvmalloc._cli.report import MEMORY_KINDS, Report
from uvmalloc._cli.tables import one_line
from uvmalloc.errors import CommandError, OptionError
from uvmalloc.sizes import format_size

_VARIABLE = b"UVMALLOC_REPORT_DIR="
_LONGEST_LINE = 300
# Counters of the simulated machine to show, and whether they count bytes.
_RATES = (
    ("kernels", "kernels", False),
    ("faulted pages", "fault_pages_device", False),
    ("to devices", "migrated_bytes_to_device", True),
    ("to the host", "migrated_bytes_to_host", True),
    ("evicted", "evicted_bytes", True),
    ("over the link", "remote_access_bytes", True),
)


# Timeout of the readings for one screen. They take milliseconds, but a file system may hang.
_MOST_SECONDS = 10.0


@dataclass(frozen=True)
class Moment:
    """The figures of a process at one time."""

    at: float
    report: Report


@dataclass(frozen=True)
class Moments:
    """The running processes by number, and a line for each file that was left out."""

    processes: Mapping[int, Moment]
    left_out: Sequence[str]
    are_some_early: bool = False  # some process has a folder for its figures but no figures yet


def folders_of(pids: Iterable[int]) -> list[Path]:
    """Returns the folders in which these processes keep their figures."""
    found: dict[Path, None] = {}
    for each in pids:
        try:
            variables = Path(f"/proc/{each}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(_VARIABLE):
                found[Path(os.fsdecode(variable.removeprefix(_VARIABLE)))] = None
    return [folder for folder in found if folder.is_dir()]


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def with_descendants(pid: int) -> list[int]:
    """Returns `pid` and its descendants: a launcher is the parent of the program that it runs."""
    children: dict[int, list[int]] = {}
    for each in _processes():
        if fields := stat_fields(each):
            children.setdefault(int(fields[1]), []).append(each)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def moments(pid: int | None) -> Moments:
    """Returns the figures of a process and its descendants, or of all that this user may read."""
    by_credentials: dict[Credentials, list[int]] = {}
    for each in with_descendants(pid) if pid is not None else sorted(_processes()):
        credentials = credentials_of(each)
        if credentials is not None:
            by_credentials.setdefault(credentials, []).append(each)
    figures_reader()  # loads it before the children give up their rights
    answers = [
        Answer(credentials, functools.partial(_look_at, pids))
        for credentials, pids in by_credentials.items()
    ]
    deadline = time.monotonic() + _MOST_SECONDS
    processes: dict[int, Moment] = {}
    left_out: list[str] = []
    are_some_early = False
    for answer in answers:
        try:
            reports, lines, is_early = answer.read(deadline)
        except CommandError as error:
            left_out.append(str(error))
            continue
        now = time.monotonic()
        processes |= {each["pid"]: Moment(now, each) for each in reports}
        left_out += lines
        are_some_early |= is_early
    return Moments(processes, left_out, are_some_early)


def _look_at(pids: Sequence[int]) -> tuple[list[Report], list[str], bool]:
    reports: list[Report] = []
    left_out: list[str] = []
    is_early = False
    for folder in folders_of(pids):
        found = running(folder)
        of_these = [report for report in found.reports if report["pid"] in pids]
        reports += of_these
        left_out += found.left_out
        is_early |= not of_these and not found.left_out and os.access(folder, os.R_OK)
    return reports, left_out, is_early


def _counters(report: Mapping[str, Any]) -> Mapping[str, int]:
    counters: Mapping[str, int] = report.get("simulator", {}).get("counters", {})
    return counters


def _counter(key: str, report: Mapping[str, Any]) -> int:
    return _counters(report).get(key, 0)


def _moved(report: Mapping[str, Any]) -> int:
    total: int = report.get("moves", {}).get("total", 0)
    return total


def memory_table(moment: Moment) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("memory", "live", "peak", "allocations", "from cache"):
        table.add_column(column, justify="left" if column == "memory" else "right")
    facades = moment.report.get("facades", {})
    for name in MEMORY_KINDS:
        facade = facades.get(name, {})
        allocations, hits = facade.get("allocations", 0), facade.get("cache_hits", 0)
        share = f"{100 * hits / allocations:.0f} %" if allocations else ""
        table.add_row(
            name, format_size(facade.get("live_bytes", 0)),
            format_size(facade.get("peak_bytes", 0)), f"{allocations:,}", share,
        )  # fmt: skip
    return table


def rate_table(now: Moment, before: Moment | None) -> Table:
    """Returns a table of totals, and of rates per second since `before`."""
    table = Table(box=None, pad_edge=False)
    for column in ("activity", "a second", "in all"):
        table.add_column(column, justify="left" if column == "activity" else "right")
    seconds = now.at - before.at if before else 0.0
    rows: list[tuple[str, Callable[[Report], int], bool]]
    rows = [("moves without a copy", _moved, False)]
    if _counters(now.report):
        rows += [
            (name, functools.partial(_counter, key), is_bytes) for name, key, is_bytes in _RATES
        ]
    for name, value_of, is_bytes in rows:
        value = value_of(now.report)
        rate = ""
        if before and seconds > 0:
            a_second = max(0, value - value_of(before.report)) / seconds
            rate = format_size(int(a_second)) if is_bytes else f"{a_second:,.0f}"
        table.add_row(name, rate, format_size(value) if is_bytes else f"{value:,}")
    return table


def group_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("group", "state", "pages", "on devices", "in a file", "sleeps", "wakes"):
        table.add_column(column, justify="left" if column in ("group", "state") else "right")
    for each in groups:
        table.add_row(
            one_line(str(each.get("name", "")), 64), str(each.get("state", "")),
            format_size(each.get("page_bytes", 0)), format_size(each.get("device_bytes", 0)),
            format_size(each.get("file_bytes", 0)),
            f"{each.get('sleeps', 0):,}", f"{each.get('wakes', 0):,}",
        )  # fmt: skip
    return table


def picture(now: Moments, before: Mapping[int, Moment]) -> RenderableType:
    parts: list[RenderableType] = []
    left_out = list(now.left_out)
    for pid, moment in sorted(now.processes.items()):
        try:
            parts += _process_picture(pid, moment, before.get(pid))
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            left_out.append(f"figures of process {pid}: a value has another type: {error}")
    if not parts and now.are_some_early:
        parts.append(Text("no program has used its device yet"))
    parts += [Text(f"left out: {_line(line)}", style="yellow") for line in left_out]
    return Group(*parts)


def _process_picture(pid: int, now: Moment, before: Moment | None) -> list[RenderableType]:
    title = Text(f"{pid}  {one_line(str(now.report.get('program', '')), 120)}", style="bold")
    parts: list[RenderableType] = [title, memory_table(now), Text(""), rate_table(now, before)]
    if groups := now.report.get("groups"):
        parts += [Text(""), group_table(groups)]
    if compared := now.report.get("compared"):
        believed, real = (
            format_size(compared.get(key, 0)) for key in ("believed_bytes", "real_bytes")
        )
        parts.append(
            Text(f"pages on devices: {believed} by uvmalloc's records, {real} by the driver")
        )
    return [*parts, Text("")]


def _line(text: str) -> str:
    return one_line(text, _LONGEST_LINE)


def moments_or_refuse(pid: int | None) -> Moments:
    """Same as moments(), but raises CommandError if there is nothing to show."""
    now = moments(pid)
    if not now.processes and not now.are_some_early:
        which = f"process {pid} does not run" if pid is not None else "no process runs"
        why = "".join(f"; left out: {_line(line)}" for line in now.left_out)
        raise CommandError(
            f"{which} under `uvmalloc run` or `uvmalloc sim` without --no-report{why}"
        )
    return now


def show(pid: int | None, interval: float, count: int | None, console: Console) -> None:
    """Draws pictures until the processes have ended, `count` are drawn, or the user interrupts."""
    now = moments_or_refuse(pid)
    pictures = _pictures(pid, interval, count, now)
    if not console.is_terminal:
        for each in pictures:
            console.print(each)
        return
    with Live(next(pictures), console=console, auto_refresh=False) as live:
        for each in pictures:
            live.update(each, refresh=True)


def _pictures(
    pid: int | None, interval: float, count: int | None, now: Moments
) -> Iterator[RenderableType]:
    yield picture(now, {})
    drawn = 1
    while count is None or drawn < count:
        before = now.processes
        time.sleep(interval)
        now = moments(pid)
        running = {
            each: moment
            for each, moment in now.processes.items()
            if not has_ended(before.get(each), moment)
        }
        now = replace(now, processes=running)
        if not now.processes and not now.left_out and not now.are_some_early:
            return
        yield picture(now, before)
        drawn += 1


def has_ended(before: Moment | None, now: Moment) -> bool:
    """An ending process removes its figures before the simulated device removes its counters."""
    return before is not None and "facades" in before.report and "facades" not in now.report


def interval_of(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise OptionError("--interval", text, "seconds from 0.1 to 3600")
    return seconds


def count_of(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise OptionError("--count", text, "a whole number from 1")
    return int(text)


def pid_of(text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise OptionError("PID", text, "the number of a process")
