"""Runs the training examples on a simulated device, under uvmalloc and without it, and compares.

Each program runs three times and writes its losses: under uvmalloc, natively on the same device,
and under uvmalloc on a small device. The program's footprint is 1.5 times the small device. In a
fourth run, the native program runs out of memory there.

Writes build/demo.json. Its top-level keys are sums (peak_bytes: the maximum) over all runs under
uvmalloc; "programs" holds each run. Exits with 1 if a promise does not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from uvmalloc._cli.report import show_report
from uvmalloc.sizes import format_size

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("train_gpt", "train_cnn")
FACADES = ("host", "pinned", "device")
OVERSUBSCRIPTION = 1.5
PAGE_BYTES = 2 << 20


class DemoError(Exception):
    """A program did not run to its end, or it wrote no results."""


@dataclass(frozen=True)
class Run:
    """One run of a program: its losses, its report and its duration."""

    name: str
    losses: list[str]
    report: dict[str, Any]
    wall_seconds: float
    capacity_bytes: int | None = None

    def figure(self, *path: str) -> int:
        value: Any = self.report
        for key in path:
            value = value.get(key, {})
        return value or 0

    def native_allocations(self) -> int:
        """Counts allocations by torch's own allocators, and unmanaged device and pinned
        allocations.
        """
        counted = sum(self.report.get("native_allocations", {}).values())
        kinds = ("device_allocations", "pinned_allocations")
        return counted + sum(self.figure("simulator", "counters", kind) for kind in kinds)

    def allocations(self) -> dict[str, int]:
        return {facade: self.figure("facades", facade, "allocations") for facade in FACADES}

    def as_json(self) -> dict[str, Any]:
        return {
            "wall_seconds": self.wall_seconds,
            "capacity_bytes": self.capacity_bytes,
            "final_loss": float.fromhex(self.losses[-1]),
            "report": self.report,
        }


@dataclass
class Comparison:
    """The runs of one program."""

    program: str
    uvmalloc: Run
    native: Run
    small: Run
    native_runs_out_of_memory: bool
    losses_equal: bool = field(init=False)

    def __post_init__(self) -> None:
        # The losses are hexadecimal floats, so equal text means equal bits.
        self.losses_equal = self.uvmalloc.losses == self.native.losses == self.small.losses

    @property
    def runs(self) -> tuple[Run, Run, Run]:
        return (self.uvmalloc, self.native, self.small)

    def as_json(self) -> dict[str, Any]:
        return {
            "losses_equal": self.losses_equal,
            "steps": len(self.native.losses),
            "native_runs_out_of_memory": self.native_runs_out_of_memory,
            **{run.name.replace(" ", "_"): run.as_json() for run in self.runs},
        }


class Demo:
    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder
        self._console = console

    def compare(self, program: str) -> Comparison:
        first = self._run(program, "uvmalloc")
        native = self._run(program, "native", native=True)
        capacity = self._small_capacity(first)
        small = self._run(program, "small device", capacity=capacity)
        return Comparison(
            program, first, native, small, self._runs_out_of_memory(program, capacity)
        )

    @staticmethod
    def _small_capacity(run: Run) -> int:
        peak = run.figure("peak_bytes")
        capacity = int(peak / OVERSUBSCRIPTION) // PAGE_BYTES * PAGE_BYTES
        if capacity < PAGE_BYTES:
            raise DemoError(f"a peak of {format_size(peak)} is too small to oversubscribe a device")
        return capacity

    def _run(
        self, program: str, name: str, *, native: bool = False, capacity: int | None = None
    ) -> Run:
        losses = self._folder / f"{program}.{name.replace(' ', '_')}.losses.json"
        report = self._folder / f"{program}.{name.replace(' ', '_')}.report.json"
        for file in (losses, report):
            file.unlink(missing_ok=True)
        on = "" if capacity is None else f", {format_size(capacity)} of device memory"
        self._console.rule(f"{program}: {name}{on}", align="left")
        started = time.monotonic()
        options = ["--no-report", "--report", str(report)]
        finished = subprocess.run(self._command(program, losses, options, native, capacity))
        seconds = time.monotonic() - started
        if finished.returncode != 0:
            raise DemoError(f"{program} ({name}) ended with exit code {finished.returncode}")
        try:
            computed, reported = json.loads(losses.read_text()), json.loads(report.read_text())
        except (OSError, ValueError) as error:
            raise DemoError(f"{program} ({name}) left no usable results: {error}") from None
        if not computed or not all(math.isfinite(float.fromhex(loss)) for loss in computed):
            raise DemoError(f"{program} ({name}) computed no finite losses")
        if not native:
            show_report(reported, self._console)
        return Run(name, computed, reported, seconds, capacity)

    def _runs_out_of_memory(self, program: str, capacity: int) -> bool:
        losses = self._folder / f"{program}.native-small.losses.json"
        command = self._command(program, losses, ["--no-report"], True, capacity)
        finished = subprocess.run(command, capture_output=True, text=True)
        return finished.returncode != 0 and "OutOfMemoryError" in finished.stderr

    @staticmethod
    def _command(
        program: str, losses: Path, options: Sequence[str], native: bool, capacity: int | None
    ) -> list[str]:
        return [
            *(str(Path(sys.executable).with_name("uvmalloc")), "sim", *options),
            *(("--native",) if native else ()),
            *(("--capacity", str(capacity)) if capacity is not None else ()),
            *("--", sys.executable, str(ROOT / "examples" / f"{program}.py")),
            *("--losses", str(losses)),
        ]


def summarize(comparisons: Sequence[Comparison], wall_seconds: float) -> dict[str, Any]:
    managed = [run for comparison in comparisons for run in (comparison.uvmalloc, comparison.small)]
    allocations: Counter[str] = Counter(dict.fromkeys(FACADES, 0))
    copied: dict[str, Counter[str]] = {}
    for run in managed:
        allocations.update(run.allocations())
        for reason, entry in (run.report.get("copies_by_moves", {}).get("by_reason", {})).items():
            copied.setdefault(reason, Counter(count=0, bytes=0)).update(entry)
        # Bytes of CPU tensors that were created before the first use of CUDA. They were copied into
        # managed memory once; the move itself copied nothing.
        conversions = run.report.get("conversions", {})
        copied.setdefault("converted", Counter(count=0, bytes=0)).update(conversions)
    return {
        "device_moves": sum(run.figure("moves", "total") for run in managed),
        "bytes_copied_by_moves": sum(
            run.figure("copies_by_moves", "bytes_at_or_above_threshold") for run in managed
        ),
        "copied_by_reason": {reason: dict(entry) for reason, entry in copied.items()},
        "allocations": dict(allocations),
        "native_allocations": sum(run.native_allocations() for run in managed),
        "losses_equal": all(comparison.losses_equal for comparison in comparisons),
        "peak_bytes": max(run.figure("peak_bytes") for run in managed),
        "wall_seconds": wall_seconds,
        "programs": {comparison.program: comparison.as_json() for comparison in comparisons},
    }


def broken_promises(summary: dict[str, Any]) -> list[str]:
    broken = []
    if summary["device_moves"] == 0:
        broken.append("no device move was seen")
    if summary["bytes_copied_by_moves"] > 0:
        copied = format_size(summary["bytes_copied_by_moves"])
        broken.append(f"device moves of large tensors copied {copied}")
    if not summary["losses_equal"]:
        broken.append("losses under uvmalloc and without it differ")
    idle = [facade for facade, count in summary["allocations"].items() if count == 0]
    if idle:
        broken.append(f"uvmalloc served no {' and no '.join(idle)} memory")
    if summary["native_allocations"] > 0:
        broken.append(f"{summary['native_allocations']:,} allocations went past uvmalloc")
    return broken


def show_summary(comparisons: Sequence[Comparison], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("program")
    table.add_column("run")
    for column in ("device", "peak", "moves", "copied", "final loss", "s"):
        table.add_column(column, justify="right")
    for comparison in comparisons:
        for run in comparison.runs:
            managed = run is not comparison.native
            copied = run.figure("copies_by_moves", "bytes_at_or_above_threshold")
            table.add_row(
                comparison.program if run is comparison.uvmalloc else "",
                run.name,
                format_size(run.capacity_bytes) if run.capacity_bytes else "ample",
                format_size(run.figure("peak_bytes")) if managed else "",
                f"{run.figure('moves', 'total'):,}" if managed else "",
                format_size(copied) if managed else "",
                f"{float.fromhex(run.losses[-1]):.6f}",
                f"{run.wall_seconds:.1f}",
            )
    console.rule("comparison", align="left")
    console.print(table)
    for comparison in comparisons:
        losses = "equal bit for bit" if comparison.losses_equal else "DIFFERENT"
        small = format_size(comparison.small.capacity_bytes or 0)
        outcome = "out of memory" if comparison.native_runs_out_of_memory else "also fits"
        console.print(
            f"{comparison.program}: {len(comparison.native.losses)} losses {losses} in all runs; "
            f"without uvmalloc on {small}: {outcome}",
            soft_wrap=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains with and without uvmalloc and compares.")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "demo.json")
    arguments = parser.parse_args()
    folder = ROOT / "build" / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(markup=False, highlight=False)
    demo = Demo(folder, console)
    started = time.monotonic()
    try:
        comparisons = [demo.compare(program) for program in PROGRAMS]
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    summary = summarize(comparisons, time.monotonic() - started)
    arguments.output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    show_summary(comparisons, console)
    broken = broken_promises(summary)
    for promise in broken:
        print(f"demo: FAILED: {promise}")
    if not broken:
        moves = f"{summary['device_moves']:,} device moves"
        print(f"demo: {moves}, 0 bytes copied by those of large tensors, equal losses")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
