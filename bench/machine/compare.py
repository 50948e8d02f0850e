"""Compares the simulated machine with published figures, counts its tested rules, and times it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from uvmalloc.libraries import Libraries

from bench.charts import draw_model
from bench.environment import clean_environment
from bench.machine.earlier import step_ratio
from bench.machine.published import Figure, figures
from bench.machine.rules import count_rules
from bench.verdict import Target, number, verdict_table

_ROOT = Path(__file__).resolve().parents[2]
_RUNS = 20
_TOUCHED_BYTES = 1 << 30
_STEPS, _WARM_UP_STEPS = 8, 2


@dataclass(frozen=True)
class Compared:
    figure: Figure
    model: float

    @property
    def error(self) -> float:
        return abs(self.model - self.figure.measured) / self.figure.measured


class Runner:
    """Runs each scenario once, in its own process."""

    def __init__(self, libraries: Libraries) -> None:
        libraries.require_stand_ins()
        self._folder = libraries.stand_ins
        self._known: dict[tuple[str, str, tuple[int, ...]], dict[str, float]] = {}

    def run(
        self, machine: str, scenario: str, arguments: Sequence[int] = (), **variables: str
    ) -> dict[str, float]:
        command = [sys.executable, "-P", "-m", "bench.machine.measure_here", str(self._folder)]
        environment = {
            **clean_environment(),
            "UVMSIM_MACHINE": machine,
            "UVMSIM_LIBRARY_DIR": str(self._folder),
            "LD_LIBRARY_PATH": str(self._folder),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
        }
        environment.update(variables)
        if machine.startswith("gb10") and scenario == "mixed":
            environment["UVMSIM_CAPACITY"] = "1GiB"
        elif scenario == "mixed":
            environment["UVMSIM_CAPACITY"] = "128MiB"
        finished = subprocess.run(
            [*command, scenario, *(str(argument) for argument in arguments)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if finished.returncode != 0:
            raise RuntimeError(f"{scenario} on {machine} failed:\n{finished.stderr}")
        result: dict[str, float] = json.loads(finished.stdout)
        return result

    def run_once(self, machine: str, scenario: str, arguments: tuple[int, ...]) -> dict[str, float]:
        key = (machine, scenario, arguments)
        if key not in self._known:
            self._known[key] = self.run(*key)
        return self._known[key]


def _predicted(compared: Sequence[Compared], group: str) -> list[Compared]:
    return [
        each
        for each in compared
        if each.figure.group == group and not each.figure.fitted and not each.figure.unmodelled
    ]


def _worst(compared: Sequence[Compared], group: str) -> float:
    return max(each.error for each in _predicted(compared, group))


def _equal_runs(runner: Runner, runs: int) -> int:
    """Returns how many runs have the same result as the first. Half of them run beside a process
    that keeps a core busy.
    """
    first = runner.run("h100-pcie5", "mixed")
    equal = 0
    for run in range(runs):
        busy = None
        if run % 2 == 1:
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            equal += runner.run("h100-pcie5", "mixed") == first
        finally:
            if busy is not None:
                busy.kill()
                busy.wait()
    return equal


def _cpu_touches(runner: Runner) -> dict[str, float]:
    """Returns the medians of three runs with tracked touches, and of three without."""
    seconds = {}
    for tracked in ("0", "1"):
        runs = [
            runner.run("h100-pcie5", "cpu_touch", (_TOUCHED_BYTES,), UVMSIM_CPU_TOUCHES=tracked)
            for _ in range(3)
        ]
        seconds[tracked] = statistics.median(run["seconds"] for run in runs)
    # Without this check, a kernel that refuses to report touches would give a ratio of 1.
    if runs[-1]["migrated_bytes_to_host"] != _TOUCHED_BYTES:
        raise RuntimeError("touches by the CPU are not tracked here")
    return {
        "cpu_touch_overhead": seconds["1"] / seconds["0"],
        "cpu_touch_seconds": seconds["1"],
        "cpu_untracked_seconds": seconds["0"],
    }


def _train(trace: Path | None) -> list[float]:
    """Returns the real seconds of the steps of a training program on the simulated device."""
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", "h100-pcie5"]
    if trace is not None:
        command += ["--trace", str(trace)]
    command += ["--", sys.executable, "-m", "bench.machine.steps_here", str(_STEPS)]
    environment = {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"the training program failed:\n{finished.stderr}")
    seconds: list[float] = json.loads(finished.stdout.splitlines()[-1])["real_seconds"]
    return seconds


def _replays(libraries: Libraries) -> dict[str, float]:
    """Measures a step of a training program, run with PyTorch and replayed from its trace.

    The real time of a replay covers the whole recording, including the part before the first step.
    """
    stepped = statistics.median(_train(None)[_WARM_UP_STEPS:])
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "steps.trace"
        _train(trace)
        finished = subprocess.run(
            [str(libraries.machine_replay), str(trace), "--machine", "h100-pcie5", "--repeat", "5"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if finished.returncode != 0:
        raise RuntimeError(f"the replay failed:\n{finished.stderr}")
    replay = json.loads(finished.stdout)
    if replay["counters"]["kernels"] < 100 * _STEPS:
        raise RuntimeError("the trace lacks the kernels of its steps")
    replayed = replay["real_ns"] * 1e-9 / _STEPS
    return {
        "replay_speedup": stepped / replayed,
        "pytorch_step_seconds": stepped,
        "replayed_step_seconds": replayed,
        "replayed_step_kernels": replay["counters"]["kernels"] / _STEPS,
    }


def compare(
    libraries: Libraries,
    output: Path,
    console: Console,
    earlier: Path | None = None,
    runs: int = _RUNS,
) -> None:
    """Writes `output` (JSON) and, beside it, a chart of model against measurement.

    `earlier` is a checkout to compare with: its training step is timed too.
    """
    runner = Runner(libraries)
    compared = [
        Compared(
            each,
            runner.run_once(each.machine, each.scenario, each.arguments)[each.key] * each.scale,
        )
        for each in figures()
    ]
    published = _predicted(compared, "published")
    integrated = runner.run("gb10", "mixed")
    rules = count_rules(_ROOT)
    result = {
        "rules_tested": int(str(rules["tested"])) / int(str(rules["rules"])),
        "rules": rules,
        "fir_bytes_error": _worst(compared, "fir_bytes"),
        "fir_time_error": _worst(compared, "fir_time"),
        "published_error": _worst(compared, "published"),
        "published_figures": len(published),
        "published_machines": len({each.figure.machine for each in published}),
        "deterministic_runs": _equal_runs(runner, runs),
        "integrated_migrated_bytes": sum(
            integrated[f"migrated_bytes_{direction}"]
            for direction in ("to_device", "to_host", "between_devices")
        ),
        **_cpu_touches(runner),
        **_replays(libraries),
        "block_ops_per_s": runner.run("h100-pcie5", "speed")["block_ops_per_s"],
        **(step_ratio(earlier) if earlier is not None else {}),
        "figures": [
            {
                "name": each.figure.name,
                "machine": each.figure.machine,
                "source": each.figure.source,
                "measured": each.figure.measured,
                "model": each.model,
                "error": each.error,
                "fitted": each.figure.fitted,
                "unmodelled": each.figure.unmodelled,
            }
            for each in compared
        ],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=2) + "\n")
    draw_model(
        [(f"{each.figure.machine}: {each.figure.name}", each.model / each.figure.measured,
          each.figure.fitted) for each in compared if not each.figure.unmodelled],
        output.with_suffix(".svg"),
    )  # fmt: skip
    _show(compared, result, console)


def _show(compared: Sequence[Compared], result: dict[str, object], console: Console) -> None:
    table = Table(title="Model against measurement")
    for column in ("machine", "figure", "measured", "model", "error", ""):
        table.add_column(column)
    for each in compared:
        figure = each.figure
        word = "fitted" if figure.fitted else "not modelled" if figure.unmodelled else "predicted"
        table.add_row(
            figure.machine, figure.name, number(figure.measured), number(each.model),
            f"{each.error:.1%}", word,
        )  # fmt: skip
    console.print(table)
    bounds = (
        ("rules_tested", 1.0, False), ("fir_bytes_error", 0.05, True),
        ("fir_time_error", 0.25, True), ("published_error", 0.25, True),
        ("published_figures", 12, False), ("published_machines", 4, False),
        ("deterministic_runs", 20, False), ("integrated_migrated_bytes", 0, True),
        ("block_ops_per_s", 2e6, False), ("step_time_ratio", 1.2, True),
        ("replay_speedup", 100, False),
    )  # fmt: skip
    verdict = [
        Target(name, "", float(str(result[name])), bound, at_most)
        for name, bound, at_most in bounds
        if name in result
    ]
    console.print(verdict_table(verdict))
    console.print(
        f"A CPU that touches 1 GiB after device use: {result['cpu_touch_seconds']:.2f} s tracked, "
        f"{result['cpu_untracked_seconds']:.2f} s untracked "
        f"(cpu_touch_overhead {result['cpu_touch_overhead']:.1f} x)"
    )
