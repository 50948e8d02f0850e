"""Measures PyTorch programs with uvmalloc and torch's own allocators on the simulated device.

Each round runs a process of each kind, one after the other, in alternating order. Each round gives
a ratio, and the result is the median over rounds. Training steps differ so little that two
processes make them in turn: see `step_ratios`.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from uvmalloc._cli.environment import (
    Machine,
    on_simulated_device,
    with_uvmalloc,
    without_uvmalloc,
)
from uvmalloc._cli.report import main_report
from uvmalloc.libraries import Libraries
from uvmalloc.sizes import format_size

from bench.allocators.engines import Program
from bench.allocators.server import Figures, RequestError, Server
from bench.environment import clean_environment
from bench.programs.differential import differences
from bench.verdict import Target, verdict_table

STEPS_HERE = Path(__file__).resolve().parent / "steps_here.py"
MEASURE_HERE = Path(__file__).resolve().parent / "measure_here.py"
LOAD_HERE = Path(__file__).resolve().parent / "load_here.py"
RFC_EXAMPLES = Path(__file__).resolve().parent / "rfc_examples.py"
# The simulator's profiles for loading: separate memories, and a shared one.
LOAD_PROFILES = ("discrete", "integrated")
STEPS_PER_TURN = 4
MOST_SECONDS_OF_A_TURN = 300.0  # includes the start of a process


@dataclass(frozen=True)
class Size:
    """The extent of the measurements."""

    rounds: int
    move_bytes: int
    layers: int  # of five parameters each
    repeats: int
    step_programs: int  # pairs of programs
    step_pairs: int  # pairs of processes that each pair of programs starts; even
    step_turns: int  # of both processes of a pair
    random_programs: int
    load_bytes: int  # of the checkpoint


FULL = Size(
    rounds=15,
    move_bytes=1 << 30,
    layers=1000,
    repeats=5,
    step_programs=10,
    step_pairs=16,
    step_turns=12,
    random_programs=500,
    load_bytes=4 << 30,
)
QUICK = Size(
    rounds=5,
    move_bytes=1 << 30,
    layers=200,
    repeats=3,
    step_programs=3,
    step_pairs=8,
    step_turns=10,
    random_programs=100,
    load_bytes=512 << 20,
)
SMOKE = Size(
    rounds=2,
    move_bytes=16 << 20,
    layers=4,
    repeats=1,
    step_programs=1,
    step_pairs=2,
    step_turns=2,
    random_programs=2,
    load_bytes=64 << 20,
)

# The program itself holds the model a second time: on the device before it loads, or in a copy of
# another library.
LOADS_THAT_DOUBLE = ("load_state_dict", "safe_open on device")


def environment_of(
    libraries: Libraries, native: bool, machine: Machine, report_dir: Path
) -> dict[str, str]:
    environment = on_simulated_device(clean_environment(), libraries, machine, None)
    if native:
        return without_uvmalloc(environment)
    return with_uvmalloc(environment, libraries, {}, report_dir)


def run_program(
    libraries: Libraries,
    native: bool,
    program: Path,
    *options: str,
    machine: Machine = Machine(),  # noqa: B008
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs one process. Returns the JSON that the program prints, and uvmalloc's report, empty
    without uvmalloc.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(program), *options]
        process = subprocess.Popen(
            command,
            env=environment_of(libraries, native, machine, Path(folder)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stdout, stderr = process.communicate()
        if process.returncode != 0:
            sys.exit(f"bench: {' '.join(command)} failed with {process.returncode}:\n{stderr}")
        return json.loads(stdout), main_report(Path(folder), process.pid) or {}


def measure(libraries: Libraries, size: Size, native: bool) -> dict[str, Any]:
    """Returns the figures of measure_here.py, and the bytes copied by large moves."""
    options = [
        f"--{name.replace('_', '-')}={getattr(size, name)}"
        for name in ("move_bytes", "layers", "repeats")
    ]
    result, report = run_program(libraries, native, MEASURE_HERE, *options)
    if (result["allocator"] == "native") != native:
        sys.exit(f"bench: torch's allocator is {result['allocator']}, native={native} was asked")
    copies = report.get("copies_by_moves", {})
    return {**result, "large_bytes_copied": copies.get("bytes_at_or_above_threshold")}


class Trainer:
    """Runs steps_here.py with one of the allocators. Errors end this program."""

    def __init__(self, libraries: Libraries, native: bool, report_dir: Path) -> None:
        self.native = native
        environment = environment_of(libraries, native, Machine(), report_dir)
        name = "native" if native else "uvmalloc"
        self._program = Server(Program(name, (sys.executable, str(STEPS_HERE)), environment))

    def start_process(self) -> None:
        allocator = self._ask("start")["allocator"]
        if (allocator == "native") != self.native:
            sys.exit(f"bench: torch's allocator is {allocator}, native={self.native} was asked")

    def step_seconds(self) -> float:
        """Returns the median of a few steps."""
        return float(self._ask(str(STEPS_PER_TURN))["seconds"])

    def end_process(self) -> None:
        self._ask("end")

    def end(self) -> None:
        self._program.close()

    def _ask(self, line: str) -> Figures:
        try:
            return self._program.ask(line, MOST_SECONDS_OF_A_TURN)
        except RequestError as error:
            sys.exit(f"bench: {STEPS_HERE.name}: {error}")


def step_ratio(trainers: tuple[Trainer, Trainer], turns: int) -> tuple[float, dict[bool, float]]:
    """Measures two new processes that alternate training steps.

    Returns the median over turns of the ratio uvmalloc / native, and of the seconds by `native`.
    """
    for trainer in trainers:
        trainer.start_process()
    seconds = [{of.native: of.step_seconds() for of in trainers} for _ in range(turns)]
    for trainer in trainers:
        trainer.end_process()
    ratio = statistics.median(of[False] / of[True] for of in seconds)
    return ratio, {native: statistics.median(of[native] for of in seconds) for native in seconds[0]}


def step_ratios(libraries: Libraries, size: Size) -> tuple[list[float], dict[bool, list[float]]]:
    """Measures like `step_ratio` with many pairs of processes.

    Two processes of one kind differ by more than uvmalloc and native do, and the first one started
    is slower. So each ratio is the geometric mean of two pairs, one in each order.
    """
    ratios: list[float] = []
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(size.step_programs):
        with tempfile.TemporaryDirectory() as folder:
            native, ours = (Trainer(libraries, of, Path(folder)) for of in (True, False))
            for _ in range(size.step_pairs // 2):
                both = []
                for trainers in ((native, ours), (ours, native)):
                    ratio, medians = step_ratio(trainers, size.step_turns)
                    both.append(ratio)
                    for of, value in medians.items():
                        seconds[of].append(value)
                ratios.append(statistics.geometric_mean(both))
            native.end()
            ours.end()
    return ratios, seconds


def load_peaks(libraries: Libraries, load_bytes: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the figures of load_here.py, by way of loading, profile and allocator, with `ratio`:
    peak memory over the model's bytes. With an integrated device the peak counts all memory, which
    device and host share. Otherwise it counts the memory of the device or the host, whichever is
    more.
    """
    peaks: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        options = (folder, f"--model-bytes={load_bytes}")
        run_program(libraries, True, LOAD_HERE, *options, "--write")
        for profile in LOAD_PROFILES:
            machine = Machine(capacity_bytes=4 * load_bytes, profile=profile)
            for native in (True, False):
                found, _ = run_program(libraries, native, LOAD_HERE, *options, machine=machine)
                name = "native" if native else "uvmalloc"
                for way, of in found["peaks"].items():
                    ratio = of["all"] if profile == "integrated" else max(of["host"], of["device"])
                    peaks.setdefault(way, {}).setdefault(profile, {})[name] = {"ratio": ratio, **of}
    return peaks


def load_bytes_here(wanted_bytes: int) -> int:
    """Returns `wanted_bytes`, cut so that this machine can hold them twice, plus page cache, with
    half of its memory free.
    """
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii").split()
    available_bytes = int(meminfo[meminfo.index("MemAvailable:") + 1]) << 10
    while wanted_bytes > available_bytes // 6:
        wanted_bytes //= 2
    return wanted_bytes


def load_table(peaks: dict[str, dict[str, dict[str, Any]]], load_bytes: int) -> Table:
    table = Table(title=f"Peak memory of loading {format_size(load_bytes)}, over that")
    table.add_column("")
    columns = [(profile, name) for profile in LOAD_PROFILES for name in ("native", "uvmalloc")]
    for profile, name in columns:
        table.add_column(f"{profile}, {name}", justify="right")
    for way, of in peaks.items():
        table.add_row(way, *(f"{of[profile][name]['ratio']:.3f}" for profile, name in columns))
    return table


def upper_bound(ratios: list[float], percent: int = 95) -> float:
    """Returns an upper bound of the median of the distribution, by bootstrap; deterministic."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[len(medians) * percent // 100]


def compare(libraries: Libraries, size: Size, file: Path, console: Console) -> None:
    """Measures, prints a table and a verdict, and writes `file`."""
    rounds = []
    for number in range(size.rounds):
        order = (True, False) if number % 2 == 0 else (False, True)
        rounds.append({native: measure(libraries, size, native) for native in order})

    def ratios(key: str) -> list[float]:
        return [of[False][key] / of[True][key] for of in rounds]

    def median(key: str, native: bool) -> float:
        return statistics.median(of[native][key] for of in rounds)

    examples, _ = run_program(libraries, False, RFC_EXAMPLES)
    different = differences(libraries, 0, size.random_programs)
    load_bytes = load_bytes_here(size.load_bytes)
    peaks = load_peaks(libraries, load_bytes)
    worst_load, worst_profile = max(
        (
            (way, profile)
            for way in peaks
            if way not in LOADS_THAT_DOUBLE
            for profile in LOAD_PROFILES
        ),
        key=lambda of: peaks[of[0]][of[1]]["uvmalloc"]["ratio"],
    )
    copied = max(of[False]["large_bytes_copied"] for of in rounds)
    steps, step_seconds = step_ratios(libraries, size)
    move = f"{size.move_bytes >> 20} MiB"
    parameters = f"{5 * size.layers} parameters"
    targets = {
        "to_1gib_ratio": Target(
            'x.to("cuda"), stock over uvmalloc',
            move,
            1 / statistics.median(ratios("move")),
            1000,
            at_most=False,
        ),
        "to_1gib_bytes": Target("bytes that large moves copied", "all", copied, 0, at_most=True),
        "module_to_ratio": Target(
            'model.to("cuda"), stock over uvmalloc',
            parameters,
            1 / statistics.median(ratios("module")),
            3,
            at_most=False,
        ),
        "eager_step_ratio": Target(
            "eager step, uvmalloc over native",
            "95 % upper bound",
            upper_bound(steps),
            1.00,
            at_most=True,
        ),
        "empty_ratio": Target(
            "torch.empty and free, uvmalloc over native",
            "1024 floats",
            statistics.median(ratios("empty")),
            0.85,
            at_most=True,
        ),
        "load_peak_ratio": Target(
            "peak memory of loading a checkpoint, over it",
            f"{worst_load}, {worst_profile}",
            peaks[worst_load][worst_profile]["uvmalloc"]["ratio"],
            1.05,
            at_most=True,
        ),
        "rfc_examples_failed": Target(
            "examples of RFC-0023 that failed",
            f"of {examples['examples']}",
            len(examples["failed"]),
            0,
            at_most=True,
        ),
        "differential_failures": Target(
            "random programs that give something else",
            f"of {size.random_programs}",
            len(different),
            0,
            at_most=True,
        ),
    }
    table = Table(title=f"PyTorch programs, medians of {size.rounds} rounds")
    for column in ("", "native", "uvmalloc"):
        table.add_column(column, justify="right" if column else "left")
    for key, what in (
        ("move", f"move of {move}"),
        ("cold_move", f"move of {move}, its code in no cache"),
        ("module", f"move of {parameters}"),
        ("empty", "torch.empty and free"),
    ):
        microseconds = (f"{median(key, native) * 1e6:,.2f}" for native in (True, False))
        table.add_row(f"{what}, µs", *microseconds)
    table.add_row(
        "eager step, µs",
        *(f"{statistics.median(step_seconds[native]) * 1e6:,.2f}" for native in (True, False)),
    )
    console.print(table)
    console.print(load_table(peaks, load_bytes))
    console.print(verdict_table(list(targets.values())))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps(
            {
                **{key: target.value for key, target in targets.items()},
                "to_1gib_cold_ratio": 1 / statistics.median(ratios("cold_move")),
                "eager_step_median": statistics.median(steps),
                "eager_step_ratios": steps,
                "load_peaks": peaks,
                "load_bytes": load_bytes,
                "targets": [
                    {"key": key, **asdict(target), "met": target.met}
                    for key, target in targets.items()
                ],
                "size": asdict(size),
                "rounds": [{"native": of[True], "uvmalloc": of[False]} for of in rounds],
            },
            indent=1,
        )
    )
