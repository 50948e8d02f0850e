"""Runs random programs with torch's own allocators and under uvmalloc; counts those that differ.

    python -m bench.programs.differential --programs 10000 --seed 0

Each program has a seed; to run a differing one alone, use --programs 1 --seed N. The exit code is 1
if any differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvmalloc._cli.environment import (
    Machine,
    on_simulated_device,
    with_uvmalloc,
    without_uvmalloc,
)
from uvmalloc._cli.report import main_report
from uvmalloc.libraries import Libraries, find_libraries

PROGRAM = Path(__file__).resolve().parent / "random_moves.py"
DEVICES = 2
_BATCH = 500  # programs per process


@dataclass(frozen=True)
class Difference:
    """The first line of a program that differs from the run with torch's own allocators."""

    seed: int
    native: str
    uvmalloc: str


def differences(libraries: Libraries, first_seed: int, programs: int) -> list[Difference]:
    """Returns the differences of the programs from `first_seed` on."""
    found = []
    for first in range(first_seed, first_seed + programs, _BATCH):
        count = min(_BATCH, first_seed + programs - first)
        found += compare_batch(libraries, first, count, os.environ)[0]
    return found


def compare_batch(
    libraries: Libraries, first_seed: int, programs: int, environment: Mapping[str, str]
) -> tuple[list[Difference], dict[str, Any]]:
    """Runs the programs in one process of each kind, in parallel. Returns uvmalloc's report too."""
    simulated = on_simulated_device(environment, libraries, Machine(DEVICES), None)
    # Tensors of a megabyte gain nothing from more threads, and two processes run at once.
    simulated["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        ours = _start(
            with_uvmalloc(simulated, libraries, {}, Path(folder)),
            first_seed,
            programs,
        )
        native = _start(without_uvmalloc(simulated), first_seed, programs)
        expected, error = native.communicate()
        if native.returncode != 0:
            ours.kill()
            ours.communicate()
            sys.exit(f"the programs fail with torch's own allocators:\n{error}")
        seen, error = ours.communicate()
        report = main_report(Path(folder), ours.pid) or {}
    native_lines, lines = _by_seed(expected), _by_seed(seen)
    # A process that ended early has printed less.
    end = f"exit code {ours.returncode}: {error.strip()[-500:]}" if ours.returncode else "nothing"
    found = []
    for seed in range(first_seed, first_seed + programs):
        pairs = zip(native_lines[seed], [*lines.get(seed, []), end], strict=False)
        different = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if different is not None:
            found.append(Difference(seed, *different))
    if ours.returncode != 0 and not found:
        found.append(Difference(first_seed + programs - 1, "exit code 0", end))
    return found, report


def _start(environment: dict[str, str], first_seed: int, programs: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(first_seed), str(programs)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def _by_seed(output: str) -> dict[int, list[str]]:
    lines: dict[int, list[str]] = {}
    for line in output.splitlines():
        lines.setdefault(int(line.split(maxsplit=1)[0]), []).append(line)
    return lines


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}'; accepted: a number from 1 on")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=_positive, default=1000, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first one")
    options = parser.parse_args()
    found = differences(find_libraries(), options.seed, options.programs)
    for difference in found:
        print(
            f"seed {difference.seed}\n  native:   {difference.native}\n"
            f"  uvmalloc: {difference.uvmalloc}"
        )
    print(f"{options.programs} programs, {len(found)} differ")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
