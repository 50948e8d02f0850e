"""Runs programs to their end, within the remaining time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_check.place import ROOT

MOST_SECONDS = 8 * 60


class CheckError(Exception):
    """The reason why a stage, or the whole check, cannot continue, in one line."""


class ExitError(CheckError):
    """A signal ended a program, or its exit code was not 0."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    print(f"gpu_check: {text}", flush=True)


@dataclass
class Clock:
    """The remaining time for the whole check."""

    ends: float = field(default_factory=lambda: time.monotonic() + MOST_SECONDS)

    def left(self, most: float) -> float:
        left = self.ends - time.monotonic()
        if left < 5:
            raise CheckError("no time is left for it")
        return min(left, most)


def run(
    command: Sequence[str], environment: Mapping[str, str], seconds: float, name: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end.

    Raises CheckError, with the last lines of its output, if it fails. In all cases, kills the
    program's whole session, so that none of its children survives.
    """
    try:
        started = subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise CheckError(f"{name} cannot be run: {error}") from None
    with started:
        try:
            stdout, stderr = started.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CheckError(f"{name} was still running after {seconds:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    if started.returncode != 0:
        last = "\n".join((stdout + stderr).strip().splitlines()[-12:])
        raise ExitError(
            f"{name} ended with exit code {started.returncode}:\n{last}", started.returncode
        )
    return subprocess.CompletedProcess(command, 0, stdout, stderr)
