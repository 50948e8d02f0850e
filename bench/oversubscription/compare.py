"""Replays recorded training steps on machines with less memory than they need, under each policy.

Each workload is recorded once on the simulated device. uvmalloc_plan repeats its last whole step in
virtual time, so a recording always gives the same figures.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from uvmalloc._trace.reader import read_trace
from uvmalloc.libraries import Libraries

from bench.environment import clean_environment
from bench.oversubscription import in_place, live, offload, peers, to_use
from bench.oversubscription.bound import Bound, step_of
from bench.oversubscription.programs import FULL_SIZE
from bench.oversubscription.timed_bound import Link, TimedBound
from bench.verdict import Target, number, verdict_table

_ROOT = Path(__file__).resolve().parents[2]
_INFERENCE = ("generation",)
MACHINES = ("h100-pcie5", "rtx4090-pcie4")
TIMES = (0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
_SHORT = (1.25, 1.5, 2.0)  # needed over available memory
_POLICIES = ("off", "driver", "lru", "auto", "planned")
# The default policy of programs, which learns the step. `planned` knows the step's order.
_LIVE = "auto"
_RECORDED_STEPS = 2
_RECORDED_ON = "h100-pcie5"
_BLOCK_BYTES = 2 << 20


@dataclass(frozen=True)
class Point:
    """A workload on a machine with 1 / `times` of the memory that it needs."""

    workload: str
    machine: str
    times: float
    memory_bytes: int
    resident_ns: float
    policies: dict[str, dict[str, Any]]
    bound: dict[str, float]
    to_device_bytes_per_ns: float
    to_host_bytes_per_ns: float
    least_ns: float | None = None  # timed_bound.py
    shuffled: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # by policy

    def step_ns(self, policy: str) -> float | None:
        return self.policies[policy].get("step_ns")

    def figure(self, name: str) -> float:
        return float(self.policies["planned"][name])

    def _copy_ns(self, to_device: float, to_host: float) -> float:
        """Returns the time of the busier lane."""
        return max(to_device / self.to_device_bytes_per_ns, to_host / self.to_host_bytes_per_ns)

    @property
    def runs(self) -> bool:
        """Whether the step completes under each compared policy."""
        return None not in map(self.step_ns, ("driver", _LIVE, "planned"))

    def speedup(self, policy: str = _LIVE) -> float:
        return float(self.policies["driver"]["step_ns"]) / float(self.policies[policy]["step_ns"])

    @property
    def unlearnable_ratio(self) -> float | None:
        """The ratio of step times, ours to the driver's, if the order differs in each step."""
        steps = [self.shuffled.get(policy, {}).get("step_ns") for policy in (_LIVE, "driver")]
        return None if None in steps else float(steps[0]) / float(steps[1])

    @property
    def over_resident(self) -> float:
        return self.figure("step_ns") / self.resident_ns

    @property
    def moved_bytes(self) -> float:
        return self.figure("to_device_bytes") + self.figure("to_host_bytes")

    @property
    def bytes_over_optimum(self) -> float | None:
        optimum = self.bound["moved_bytes"]
        if optimum < _BLOCK_BYTES:
            return 1.0 if self.moved_bytes < _BLOCK_BYTES else None
        return self.moved_bytes / optimum

    @property
    def bound_ns(self) -> float:
        copies = self._copy_ns(self.bound["to_device_bytes"], self.bound["to_host_bytes"])
        return max(self.resident_ns, copies)

    @property
    def step_over_bound(self) -> float:
        return self.figure("step_ns") / self.bound_ns

    @property
    def hidden_share(self) -> float | None:
        """The part of the busier copy lane's time that does not lengthen the step."""
        copies = self._copy_ns(self.figure("to_device_bytes"), self.figure("to_host_bytes"))
        if copies == 0:
            return None
        return max(0.0, 1 - (self.figure("step_ns") - self.resident_ns) / copies)

    @property
    def could_hide(self) -> bool:
        """Whether a schedule could hide all copies, by the time bound."""
        return self.least_ns is not None and self.least_ns <= self.resident_ns

    @property
    def step_over_timed_bound(self) -> float | None:
        if self.least_ns is None:
            return None
        # The time bound checks one kernel per slot, so a lane's bound of bytes may be larger.
        return self.figure("step_ns") / max(self.least_ns, self.bound_ns)

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "workload": self.workload,
            "machine": self.machine,
            "times": self.times,
            "memory_bytes": self.memory_bytes,
            "resident_ns": self.resident_ns,
            "policies": self.policies,
            "bound": self.bound,
        }
        if self.runs:
            result |= {
                "speedup_over_driver": self.speedup(),
                "planned_speedup_over_driver": self.speedup("planned"),
                "bytes_over_optimum": self.bytes_over_optimum,
                "step_over_bound": self.step_over_bound,
                "least_ns": self.least_ns,
                "unlearnable_ratio": self.unlearnable_ratio,
                "step_over_timed_bound": self.step_over_timed_bound,
                "hidden_share": self.hidden_share,
                "could_hide": self.could_hide,
            }
        return result


def _run(command: Sequence[str], what: str) -> str:
    environment = {
        **clean_environment(),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"{what} failed:\n{finished.stderr}")
    return finished.stdout


def record(workload: str, trace: Path) -> None:
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--machine", _RECORDED_ON]
    command += ["--trace", str(trace), "--", sys.executable, "-m"]
    command += ["bench.oversubscription.steps_here", workload, str(_RECORDED_STEPS)]
    _run(command, f"the recording of {workload}")


@dataclass(frozen=True)
class ByHand:
    """A method of explicit moves, and two policies with the memory that the method needs."""

    workload: str
    machine: str
    name: str
    memory_bytes: int
    resident_ns: float
    step_ns: float
    live_ns: float
    planned_ns: float

    @property
    def speedup(self) -> float:
        return self.step_ns / self.live_ns


def _by_hand(workload: str, machine: str, planned: dict[str, Any]) -> Iterator[ByHand]:
    for name, entry in planned["by_hand"].items():
        if "failure" in entry["figures"]:
            continue
        if all("failure" not in entry[policy] for policy in (_LIVE, "planned")):
            yield ByHand(
                workload, machine, name, entry["memory_bytes"], planned["all_resident"]["step_ns"],
                entry["figures"]["step_ns"], entry[_LIVE]["step_ns"], entry["planned"]["step_ns"],
            )  # fmt: skip


def _points(workload: str, machine: str, planned: dict[str, Any], bound: Bound) -> Iterator[Point]:
    rates = planned["to_device_bytes_per_ns"], planned["to_host_bytes_per_ns"]
    durations = [planned["kernel_ns"][kernel.number] for kernel in bound.kernels]
    timed = TimedBound(bound, durations, Link(*rates))
    for point in planned["points"]:
        chunks = point["memory_bytes"] // _BLOCK_BYTES
        bytes_of = {
            "moved_bytes": bound.fewest_bytes(chunks, True, True),
            "to_device_bytes": bound.fewest_bytes(chunks, True, False),
            "to_host_bytes": bound.fewest_bytes(chunks, False, True),
        }
        yield Point(
            workload, machine, point["times"], point["memory_bytes"],
            planned["all_resident"]["step_ns"], point["policies"], bytes_of, *rates,
            timed.least_ns(chunks) if point["times"] in _SHORT else None, point["shuffled"],
        )  # fmt: skip


def _measure(
    program: Path, workload: str, machine: str, trace: Path, bound: Bound
) -> tuple[list[Point], list[ByHand]]:
    command = [str(program), str(trace), "--machine", machine]
    for times in TIMES:
        command += ["--times", str(times)]
    planned = json.loads(_run(command, f"the plan of {workload} on {machine}"))
    return (
        list(_points(workload, machine, planned, bound)),
        list(_by_hand(workload, machine, planned)),
    )


@dataclass(frozen=True)
class TwoPrograms:
    """Two instances of a program on a device. Each needs 3/4 of the memory. Times are per round."""

    workload: str
    machine: str
    alone_ns: float  # one after the other
    turns_ns: float
    driver_ns: float

    @property
    def ratio(self) -> float:
        return self.turns_ns / self.alone_ns


def _two_programs(program: Path, workload: str, machine: str, trace: Path) -> TwoPrograms:
    command = [str(program), str(trace), "--machine", machine, "--times", "0.75"]
    found = json.loads(_run([*command, "--beside", str(trace)], f"two of {workload} on {machine}"))
    if "failure" in found:
        raise RuntimeError(f"two of {workload} on {machine}: {found['failure']}")
    times = (found[name] for name in ("alone_ns", "turns_ns", "driver_ns"))
    return TwoPrograms(workload, machine, *times)


def _geometric_means(
    points: Sequence[Point], times: Sequence[float], policy: str = _LIVE
) -> Iterator[float]:
    """Yields the geometric mean of the workloads' speed-ups, for each machine and memory."""
    for machine in MACHINES:
        for each in times:
            speedups = [
                p.speedup(policy) for p in points if p.machine == machine and p.times == each
            ]
            if speedups:
                yield math.prod(speedups) ** (1 / len(speedups))


def _worst(
    points: Sequence[Point], value: Callable[[Point], float | None], pick: Callable[..., float]
) -> float | None:
    values = [found for point in points if (found := value(point)) is not None]
    return pick(values) if values else None


def keys_of(points: Sequence[Point], by_hand: Sequence[ByHand]) -> dict[str, float | int | None]:
    """Returns the worst value of each measure, or None if no point has the measure."""
    run = [point for point in points if point.runs]
    short = [point for point in run if point.times in _SHORT]
    return {
        "fit_overhead": _worst([p for p in run if p.times == 0.75], lambda p: p.over_resident, max),
        "fit_hint_calls": _worst(
            [p for p in run if p.times == 0.75], lambda p: p.figure("hint_calls"), max
        ),
        "speedup_over_driver": min(_geometric_means(run, _SHORT), default=None),
        "speedup_over_driver_at_3": min(_geometric_means(run, (3.0,)), default=None),
        "planned_speedup_over_driver": min(_geometric_means(run, _SHORT, "planned"), default=None),
        "least_speedup": _worst([p for p in run if p.times > 1], lambda p: p.speedup(), min),
        "bytes_over_optimum": _worst(short, lambda p: p.bytes_over_optimum, max),
        "step_over_bound": _worst(short, lambda p: p.step_over_bound, max),
        "step_over_timed_bound": _worst(short, lambda p: p.step_over_timed_bound, max),
        "hidden_share": _worst([p for p in short if p.could_hide], lambda p: p.hidden_share, min),
        "at_capacity": _worst([p for p in run if p.times == 1.0], lambda p: p.over_resident, max),
        "steady_faults": _worst(short, lambda p: p.figure("faults"), max),
        "inference_d2h_bytes": _worst(
            [p for p in run if p.workload in _INFERENCE and p.times == 1.5],
            lambda p: p.figure("to_host_bytes"),
            max,
        ),
        "unlearnable_ratio": _worst(short, lambda p: p.unlearnable_ratio, max),
        "speedup_over_offload": min((each.speedup for each in by_hand), default=None),
        "points_that_end_early": len(points) - len(run),
    }


_BOUNDS = (
    ("fit_overhead", 1.01, True), ("fit_hint_calls", 0, True), ("speedup_over_driver", 3, False),
    ("speedup_over_driver_at_3", 2, False), ("least_speedup", 1, False),
    ("bytes_over_optimum", 1.11, True), ("step_over_bound", 1.15, True),
    ("step_over_timed_bound", 1.15, True), ("hidden_share", 0.8, False),
    ("at_capacity", 1.05, True), ("steady_faults", 0, True),
    ("inference_d2h_bytes", 0, True), ("unlearnable_ratio", 1.02, True),
    ("speedup_over_offload", 1.2, False), ("two_programs", 1.1, True), ("to_use_ratio", 1, True),
    ("live_speedup_over_driver", 3, False), ("live_least_speedup", 1, False),
    ("auto_over_lru_worst", 1, True), ("steady_faults_live", 0, True),
    ("peer_speedup", 1.2, False), ("in_place_speedup", 1.2, False),
    ("in_place_optimizer_speedup", 1.2, False), ("both_memories", 0.8, True),
)  # fmt: skip


def compare(libraries: Libraries, output: Path, console: Console) -> None:
    """Writes `output` (JSON). The traces are in the folder `oversubscription` beside it, and the
    figures of running programs in live.json.
    """
    libraries.require_stand_ins()
    program = libraries.folder.parent / "bin" / "uvmalloc_plan"
    traces = output.with_suffix("")
    traces.mkdir(parents=True, exist_ok=True)
    points: list[Point] = []
    by_hand: list[ByHand] = []
    two_programs: list[TwoPrograms] = []
    for workload in FULL_SIZE:
        trace = traces / f"{workload}.trace"
        record(workload, trace)
        bound = Bound(step_of(read_trace(trace), ""))
        for machine in MACHINES:
            found = _measure(program, workload, machine, trace, bound)
            points += found[0]
            by_hand += found[1]
            if workload not in _INFERENCE:
                two_programs.append(_two_programs(program, workload, machine, trace))
    moved = to_use.measure()
    running = live.measure(console, output=output.with_name("live.json"))
    beside = peers.measure()
    keys = keys_of(points, by_hand)
    offloaded = offload.measure()
    keys["speedup_over_offload"] = min(
        value
        for value in (keys["speedup_over_offload"], offloaded.pop("speedup_over_offload"))
        if value
    )
    keys["two_programs"] = max(each.ratio for each in two_programs)
    result = {
        **keys,
        **moved,
        # The policy of the speed-ups and of steps without a fixed order. Other measures use
        # `planned`.
        "policy": _LIVE,
        "detail": [point.as_json() for point in points],
        "by_hand": [dataclasses.asdict(each) | {"speedup": each.speedup} for each in by_hand],
        "two_programs_detail": [
            dataclasses.asdict(each) | {"ratio": each.ratio} for each in two_programs
        ],
        **running,
        **beside,
        **offloaded,
        **in_place.measure(),
    }
    output.write_text(json.dumps(result, indent=2) + "\n")
    _show(points, by_hand, two_programs, result, console)


def _show(
    points: Sequence[Point], by_hand: Sequence[ByHand], two_programs: Sequence[TwoPrograms],
    keys: dict[str, Any], console: Console,
) -> None:  # fmt: skip
    table = Table(title="Time of a step against all memory resident")
    columns = ("workload", "machine", "needs", *_POLICIES, "least", "moved, MiB", "fewest, MiB")
    for column in columns:
        table.add_column(column)
    for point in points:
        steps = [point.step_ns(policy) for policy in _POLICIES]
        table.add_row(
            point.workload, point.machine, f"{point.times:g} x",
            *(number(None if step is None else step / point.resident_ns) for step in steps),
            number(None if point.least_ns is None else point.least_ns / point.resident_ns),
            number(point.moved_bytes / (1 << 20) if point.runs else None),
            number(point.bound["moved_bytes"] / (1 << 20)),
        )  # fmt: skip
    console.print(table)
    hand = Table(title="Memory moved by hand, and two policies with the same memory")
    columns = ("workload", "machine", "way", "memory, MiB", "by hand", _LIVE, "planned", "speed-up")
    for column in columns:
        hand.add_column(column)
    for each in by_hand:
        hand.add_row(
            each.workload, each.machine, each.name, number(each.memory_bytes / (1 << 20)),
            number(each.step_ns / each.resident_ns), number(each.live_ns / each.resident_ns),
            number(each.planned_ns / each.resident_ns), number(each.speedup),
        )  # fmt: skip
    console.print(hand)
    both = Table(title="A program twice on one device, of which each needs 0.75")
    for column in ("workload", "machine", "turns", "without turns, `driver`"):
        both.add_column(column)
    for each in two_programs:
        both.add_row(
            each.workload, each.machine, f"{each.ratio:.3f} x",
            f"{each.driver_ns / each.alone_ns:.2f} x",
        )  # fmt: skip
    console.print(both)
    console.print(
        verdict_table([Target(name, "", keys[name], bound, most) for name, bound, most in _BOUNDS])
    )
