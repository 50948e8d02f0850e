"""Reads the reports that the processes of a launch have left in a folder, and adds them up.

A process that ends normally writes `report.<pid>.json`. A process that is killed, crashes, calls
os._exit() or executes another program leaves its figures in `report.<pid>.figures`. The second
program of a process uses `report.<pid>-2.figures`. The simulator does the same with
`sim.<pid>.json` and `sim.<pid>.json.counters`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uvmalloc._cli.files import MOST_BYTES
from uvmalloc._cli.launch import Finished
from uvmalloc._cli.report import Report, opened, read_found
from uvmalloc.errors import CommandError

SIM_REPORT_NAME = "sim.%p.json"
_STATIC_RUNTIME = (
    "it contains CUDA's static runtime, which accepts only NVIDIA's driver (link it with the "
    "shared one: nvcc -cudart shared)"
)
_COUNTERS_HEADER_BYTES = 4096  # sim/engine/report.hpp
# Facts of one process, which a sum does not contain.
_OWN_KEYS = {"pid", "parent", "rank", "start_time", "start_ticks", "budget_bytes", "ended"}
_LIMITS = {"threshold_bytes"}  # limits of each process, which are not added up


@dataclass
class Found:
    """Reports that were found in a folder, and a line for each file that was left out."""

    reports: list[Report] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def reading(self, read: Callable[[Path], Report], file: Path) -> Iterator[Report]:
        """Yields the report in a file; yields nothing for a bad file, to go on with other files."""
        try:
            yield read(file)
        except CommandError as error:
            self.left_out.append(str(error))


def collect(
    folder: Path, command: Sequence[str], finished: Finished, reason: str
) -> tuple[Report, list[str]]:
    """Returns the report on a launch, and a line for each file that was left out.

    If the launch had several processes, the report is a sum with "processes" in it. `reason` says
    why a process without figures has none.
    """
    found = Found()
    found.reports += [*_ended_reports(folder, found), *_figures_left(folder, found)]
    _add_counters(folder, found, reason)
    return _summary(found.reports, command, finished, reason), found.left_out


def _summary(
    processes: list[Report], command: Sequence[str], finished: Finished, reason: str
) -> Report:
    own = [report for report in processes if report.get("pid") == finished.pid]
    for report in own:
        if report.get("ended", {}).get("how") != "exec":
            report["ended"] = _how(finished)
            if "start_time" in report:
                report["wall_seconds"] = finished.ended_at - report["start_time"]
    processes.sort(key=lambda report: _order(report, finished.pid))
    launched = {"command": list(command), "pid": finished.pid, "ended": _how(finished)}
    if not processes:
        nothing: Report = {"active": False, "reason": reason, "ended": _how(finished)}
        return {**nothing, "launched": launched}
    if len(processes) == 1:
        return {**processes[0], "launched": launched}
    return {**sum_of(processes), "launched": launched, "processes": processes}


def running(folder: Path) -> Found:
    """Reads the current reports of the processes in a folder that are still running."""
    found = Found()
    found.reports += _figures_left(folder, found)
    _add_counters(folder, found, "")
    found.reports = [report for report in found.reports if _runs(report)]
    return found


def _runs(report: Report) -> bool:
    if "ended" in report:
        return bool(report["ended"]["how"] == "running")
    return Path(f"/proc/{report['pid']}").exists()


def sum_of(processes: Sequence[Report]) -> Report:
    """Returns the sums of all figures, and every other value that is the same in all processes.

    Peaks are added too, although they may have occurred at different times.
    """
    merged = _merge([_to_add_up(report) for report in processes])
    merged["active"] = any(report.get("active") for report in processes)
    times = [report["wall_seconds"] for report in processes if "wall_seconds" in report]
    return {**merged, "wall_seconds": max(times)} if times else merged


def _to_add_up(report: Report) -> Report:
    kept = {
        key: value
        for key, value in report.items()
        if key not in _OWN_KEYS and key != "wall_seconds"
    }
    if "simulator" in report:
        kept["simulator"] = {"counters": report["simulator"].get("counters", {})}
    return kept


def _merge(values: Sequence[Any], limit: bool = False) -> Any:
    """Returns the sum, or the common value. None: the values differ, or one is unknown."""
    if all(isinstance(value, dict) for value in values):
        merged = {}
        for key in dict.fromkeys(key for value in values for key in value):
            of_key = [value[key] for value in values if key in value]
            found = _merge(of_key, key in _LIMITS)
            if found is not None or None in of_key:
                merged[key] = found
        return merged
    if _all_numbers(values) and not limit:
        return sum(values)
    return values[0] if all(value == values[0] for value in values) else None


def _all_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _how(finished: Finished) -> dict[str, Any]:
    if finished.signal_name is not None:
        return {"how": "signal", "signal": finished.signal_name}
    return {"how": "exit", "exit_code": finished.exit_code}


def _order(report: Report, launched_pid: int) -> tuple[bool, float, float]:
    rank = str(report.get("rank") or "")
    number = float(rank) if rank.isdigit() else float("inf")
    return report.get("pid") != launched_pid, number, report.get("start_time") or 0.0


# ---- what is in the folder ----------------------------------------------------------------------


def _ended_reports(folder: Path, found: Found) -> Iterator[Report]:
    for file in sorted(folder.glob("report.*.json")):
        for report in found.reading(read_found, file):
            yield {**report, "ended": {"how": "exit"}}


def _figures_left(folder: Path, found: Found) -> Iterator[Report]:
    """Yields reports on processes that left figures and wrote no report."""
    files: dict[int, list[Path]] = {}
    for file in folder.glob("report.*.figures"):
        name = re.fullmatch(r"report\.(\d{1,10})(?:-\d+)?\.figures", file.name)
        if name is not None:
            files.setdefault(int(name[1]), []).append(file)
    for pid, of_process in files.items():
        of_process.sort(key=lambda file: (len(file.name), file.name))
        for file in of_process:
            went_on = file is not of_process[-1] or (folder / f"report.{pid}.json").exists()
            for report in found.reading(read_found, file):
                report["pid"] = pid
                report["ended"] = {"how": _how_left(report, went_on)}
                yield report


def _how_left(report: Report, went_on: bool) -> str:
    if went_on:
        return "exec"
    return "running" if _is_alive(report["pid"], report.get("start_ticks")) else "unknown"


def _is_alive(pid: int, start_ticks: int | None) -> bool:
    fields = stat_fields(pid)
    return fields != [] and fields[0] not in "ZX" and int(fields[19]) == start_ticks


def stat_fields(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the third on (the state, the parent and so on).

    Returns an empty list if there is no such process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # names may hold any bytes
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _add_counters(folder: Path, found: Found, reason: str) -> None:
    """Adds the simulator's counters, and a report for each process that only left counters."""
    for counters in _simulated(folder, found):
        pid = counters["pid"]
        own = [report for report in found.reports if report.get("pid") == pid]
        if own:
            own[-1]["simulator"] = counters
            continue
        why = _STATIC_RUNTIME if _holds_static_runtime(counters) else reason
        report: Report = {"active": False, "reason": why, "pid": pid}
        if "program" in counters:
            report["program"] = counters["program"]
        found.reports.append({**report, "simulator": counters})


def _holds_static_runtime(counters: Report) -> bool:
    """Only a static runtime requests its private table from the driver (sim/cuda/driver)."""
    return "cuGetExportTable" in counters.get("unimplemented", {})


def _simulated(folder: Path, found: Found) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("sim.*.json")):
        yield from found.reading(_read_ended_counters, file)
    for file in sorted(folder.glob("sim.*.json.counters")):
        if not file.with_suffix("").exists():
            yield from found.reading(_read_counters, file)


def _read_ended_counters(file: Path) -> dict[str, Any]:
    return _checked(read_found(file), file)


def _read_counters(file: Path) -> dict[str, Any]:
    with opened(file) as stream:
        content = stream.read(MOST_BYTES)
    try:
        header = json.loads(content[:_COUNTERS_HEADER_BYTES])
        values = content[_COUNTERS_HEADER_BYTES:]
        numbers = struct.unpack(f"<{len(values) // 8}Q", values)
        counters = {name: numbers[index] for name, index in header["counters"].items()}
        return _checked({**header, "counters": counters}, file)
    except (
        ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, struct.error
    ) as error:  # fmt: skip
        raise CommandError(f"{file} holds no counters: {error}") from None


def _checked(counters: dict[str, Any], file: Path) -> dict[str, Any]:
    numbers, calls = counters.get("counters"), counters.get("unimplemented", {})
    if (
        isinstance(numbers, dict)
        and isinstance(calls, dict)
        and isinstance(counters.get("pid"), int)
        and _all_numbers(numbers.values())
    ):
        return counters
    raise CommandError(f"{file} holds no counters of a process")
