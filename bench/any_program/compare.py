"""Measures CUDA programs without PyTorch, with libuvmalloc_preload.so preloaded and without it.

`pair_ns` and `driver_allocations_per_step` come from a program of CUDA's runtime on the simulated
device, `startup_ms` from programs that never use CUDA. `fork_runs_failed` comes from a program that
forks, starts other programs and exits at moments that a seed chooses.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from uvmalloc._cli.environment import Machine, on_simulated_device, with_cuda_calls_served
from uvmalloc.libraries import Libraries

from bench.any_program.figures import write_figures
from bench.environment import clean_environment

RESTLESS = Path(__file__).resolve().parent / "restless.py"
STARTED = {
    "sh": ("sh", "-c", ":"),
    "git": ("git", "--version"),
    "python": (sys.executable, "-c", "pass"),
    "gcc": ("gcc", "--version"),
}
ROUND_SECONDS = 120  # a program that takes longer counts as hanging


@dataclass(frozen=True)
class Level:
    rounds: int  # of each timed program
    starts: int  # of each program with a timed start
    restless: int  # runs of the program that forks


FULL = Level(rounds=5, starts=40, restless=200)
QUICK = Level(rounds=2, starts=15, restless=40)
SMOKE = Level(rounds=1, starts=3, restless=3)


def on_device(libraries: Libraries) -> dict[str, str]:
    return on_simulated_device(clean_environment(), libraries, Machine(), None)


def run_program(libraries: Libraries, what: str, environment: Mapping[str, str]) -> Any:
    program = libraries.folder.parent / "bin" / "cuda_program"
    done = subprocess.run(
        (program, what), env=environment, capture_output=True, text=True, timeout=ROUND_SECONDS
    )
    if done.returncode != 0:
        sys.exit(f"bench: {program} {what} failed with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def pair_ns(libraries: Libraries, rounds: int) -> dict[str, dict[str, float]]:
    """Returns nanoseconds of cudaMalloc and cudaFree by size in bytes: the driver's, and ours."""
    plain = on_device(libraries)
    ours = with_cuda_calls_served(plain, libraries.require_uvmalloc())
    samples: dict[str, dict[str, list[float]]] = {"driver": {}, "uvmalloc": {}}
    for _ in range(rounds):
        for name, environment in (("driver", plain), ("uvmalloc", ours)):
            for size, nanoseconds in run_program(libraries, "pairs", environment).items():
                samples[name].setdefault(size, []).append(nanoseconds)
    return {
        name: {size: statistics.median(values) for size, values in by_size.items()}
        for name, by_size in samples.items()
    }


def driver_allocations_per_step(libraries: Libraries) -> dict[str, list[int]]:
    """Returns the number of allocations that reach the driver, by step."""
    plain = on_device(libraries)
    return {
        "driver": run_program(libraries, "steps", plain),
        "uvmalloc": run_program(
            libraries, "steps", with_cuda_calls_served(plain, libraries.require_uvmalloc())
        ),
    }


def startup_ms(libraries: Libraries, starts: int) -> dict[str, float]:
    """Returns the median time that the preloaded library adds to the start of programs that do not
    use CUDA.
    """
    plain = clean_environment()
    ours = with_cuda_calls_served(plain, libraries.require_uvmalloc())

    def run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, bytes]:
        began = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        return (time.perf_counter() - began) * 1e3, done.stdout + done.stderr

    added = {}
    for name, command in STARTED.items():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(starts):
            without, output = run(command, plain)
            with_ours, same_output = run(command, ours)
            if output != same_output:
                sys.exit(f"bench: {name} prints something else under the preload")
            times[0].append(without)
            times[1].append(with_ours)
        added[name] = round(statistics.median(times[1]) - statistics.median(times[0]), 2)
    return added


def fork_runs_failed(libraries: Libraries, runs: int) -> int:
    """Returns how many of `runs` runs hung, crashed or failed."""
    environment = with_cuda_calls_served(on_device(libraries), libraries.require_uvmalloc())
    failed = 0
    for seed in range(runs):
        try:
            done = subprocess.run(
                (sys.executable, RESTLESS, str(seed)),
                env=environment,
                capture_output=True,
                text=True,
                timeout=ROUND_SECONDS,
            )
            if done.returncode != 0:
                print(f"bench: seed {seed} ended with {done.returncode}:\n{done.stderr}")
                failed += 1
        except subprocess.TimeoutExpired:
            print(f"bench: seed {seed} hung")
            failed += 1
    return failed


def compare(libraries: Libraries, level: Level, file: Path, console: Console) -> None:
    """Measures, prints, and writes `file`."""
    pairs = pair_ns(libraries, level.rounds)
    steps = driver_allocations_per_step(libraries)
    startup = startup_ms(libraries, level.starts)
    failed = fork_runs_failed(libraries, level.restless)
    for size, nanoseconds in pairs["uvmalloc"].items():
        console.print(
            f"pair of {int(size):>9,} bytes: {nanoseconds:7.1f} ns, "
            f"the driver's {pairs['driver'][size]:9.1f} ns"
        )
    console.print(f"driver allocations by step: {steps['uvmalloc']}, without {steps['driver']}")
    console.print(f"added to the start, in ms: {startup}")
    console.print(f"runs with forks that failed: {failed} of {level.restless}")
    figures = {
        "pair_ns": pairs,
        "driver_allocations_per_step": steps,
        "startup_ms": startup,
        "fork_runs": level.restless,
        "fork_runs_failed": failed,
    }
    write_figures(figures, file)
