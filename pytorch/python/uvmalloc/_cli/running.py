"""Runs a program for the command, and shows or writes its report."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from uvmalloc._cli.environment import Environment, wanted_reports
from uvmalloc._cli.files import write_own
from uvmalloc._cli.launch import launch
from uvmalloc._cli.processes import collect
from uvmalloc._cli.report import show_report
from uvmalloc.errors import CommandError

NOT_USED = "this program did not use it (it serves PyTorch, and allocation calls of CUDA and HIP)"


@dataclass(frozen=True)
class Reporting:
    """Where the report is written when the program has ended."""

    file: Path | None
    shown: bool

    @property
    def wanted(self) -> bool:
        return self.shown or self.file is not None


def run_program(
    command: Sequence[str],
    environment: Callable[[Path | None], Environment],
    reporting: Reporting,
    inactive_reason: str = NOT_USED,
) -> int:
    """Runs `command`, shows and writes the report, and returns the program's exit code.

    `environment` is called with the folder for the reports of the processes, or None.
    """
    folder = _report_folder() if reporting.wanted else None
    if folder is None:
        return launch(command, environment(None)).exit_code
    try:
        finished = launch(command, environment(folder))
        _copy_reports(folder)
        try:
            found, left_out = collect(folder, command, finished, inactive_reason)
            for line in left_out:
                say(f"left out of the report: {line}")
            if reporting.file is not None:
                write_own(reporting.file, (json.dumps(found, indent=2) + "\n").encode())
            if reporting.shown:
                show_report(found, console(stderr=True))
        except (CommandError, OSError) as error:  # keep the program's exit code
            say(f"the report is lost: {error}")
        return finished.exit_code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _report_folder() -> Path | None:
    """Makes a folder for the reports of the processes. Prints a line and returns None on failure.

    Processes keep figures in files there while they run, so a folder in memory is preferred.
    """
    chosen = [os.environ["TMPDIR"]] if os.environ.get("TMPDIR") else []
    for parent in (*chosen, "/dev/shm", None):
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="uvmalloc-report-", dir=parent))
    say("no folder for temporary files can be written: there will be no report")
    return None


def _copy_reports(folder: Path) -> None:
    """Copies reports to the files that the user's variables name."""
    for file, wanted in wanted_reports(os.environ, folder):
        try:
            write_own(wanted, file.read_bytes())
        except OSError as error:
            say(f"cannot write {wanted}: {error.strerror}")


def console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, markup=False, highlight=False)


def say(message: str) -> None:
    """Prints a line. A failure to print the line does not change the exit code."""
    with contextlib.suppress(OSError):
        typer.echo(f"uvmalloc: {message}", err=True)
