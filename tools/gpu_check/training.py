"""Trains with and without uvmalloc: compares the losses and the time of a step."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_check.measurements import Json
from gpu_check.place import MIB, ROOT, Place
from gpu_check.subprograms import CheckError, Clock, run

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Training:
    steps: int
    batch_size: int
    embedding: int
    layers: int
    context: int
    heads: int = 8
    corpus_mib: int = 8
    least_budget_bytes: int = 0  # machines with a smaller budget skip this training

    def options(self) -> list[str]:
        values = {name: value for name, value in vars(self).items() if not name.startswith("least")}
        pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items()]
        return [word for pair in pairs for word in pair]


TRAININGS = {
    "small_model": Training(steps=30, batch_size=8, embedding=256, layers=4, context=128),
    "larger_model": Training(
        steps=20,
        batch_size=16,
        embedding=768,
        layers=8,
        context=256,
        least_budget_bytes=4096 * MIB,
    ),
}
SIMULATED_TRAININGS = {
    "small_model": Training(4, batch_size=2, embedding=32, layers=1, context=16, corpus_mib=1),
}
EVICTED_TRAINING = (
    Training(steps=12, batch_size=16, embedding=768, layers=8, context=256),
    (1.25, 1.5, 2.0),  # the program's memory need is divided by these numbers
)


def compare_losses(native: Sequence[float], ours: Sequence[float]) -> tuple[str, float]:
    """Returns the outcome in words, and the largest relative difference."""
    if len(native) != len(ours) or not all(map(math.isfinite, [*native, *ours])):
        return "different", math.inf
    largest = max(
        abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in zip(native, ours, strict=True)
    )
    if largest == 0:
        return "equal_bit_for_bit", 0.0
    return ("within_1e-5" if largest <= TOLERANCE else "different"), largest


@dataclass
class Trained:
    losses: list[float]
    step_ms: float
    report: Json


def train_once(
    place: Place,
    clock: Clock,
    folder: Path,
    training: Training,
    native: bool,
    settings: Mapping[str, str] | None = None,
) -> Trained:
    """`settings` are environment variables for the program."""
    files = {name: folder / f"{name}.json" for name in ("losses", "times", "report")}
    for file in files.values():
        file.unlink(missing_ok=True)
    script = [str(ROOT / "examples" / "train_gpt.py"), *training.options()]
    script += ["--losses", str(files["losses"]), "--times", str(files["times"])]
    report = None if native else files["report"]
    command = place.python(*script, native=native, report=report, variables=settings)
    run(command, place.environment(), clock.left(120), "train_gpt.py")
    times = json.loads(files["times"].read_text())
    return Trained(
        [float.fromhex(loss) for loss in json.loads(files["losses"].read_text())],
        round(1000 * statistics.median(times[len(times) // 3 :]), 3),
        {} if native else json.loads(files["report"].read_text()),
    )


def train(place: Place, clock: Clock, folder: Path, training: Training) -> Json:
    native, ours = (train_once(place, clock, folder, training, native) for native in (True, False))
    report = ours.report
    if not report.get("active"):
        raise CheckError(f"uvmalloc was not active: {report.get('reason', 'no reason given')}")
    outcome, difference = compare_losses(native.losses, ours.losses)
    out: Json = {
        "steps": training.steps,
        "native_step_ms": native.step_ms,
        "uvmalloc_step_ms": ours.step_ms,
        "uvmalloc_over_native": round(ours.step_ms / native.step_ms, 3),
        "losses": outcome,
        "largest_relative_difference": difference,
    }
    if outcome == "different":
        # Some kernels add in a different order in each run, so compare two native runs.
        again = train_once(place, clock, folder, training, native=True)
        control, of_native = compare_losses(native.losses, again.losses)
        out["native_against_itself"] = of_native
        if control == "different":
            out["losses"] = "different_from_run_to_run"
    for name in ("peak_bytes", "moves", "copies_by_moves", "native_allocations", "driver_calls"):
        out[name] = report.get(name)
    return out
