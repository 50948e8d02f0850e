"""PyTorch programs with and without uvmalloc: random moves, served calls, and evictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from uvmalloc._cli.environment import REPORT_DIR, with_cuda_calls_served

from gpu_check.measurements import Json
from gpu_check.place import MIB, ROOT, Place
from gpu_check.subprograms import CheckError, Clock, run
from gpu_check.training import Training, compare_losses, train_once

RANDOM_MOVES = ROOT / "bench" / "programs" / "random_moves.py"


def random_moves(place: Place, clock: Clock, programs: int) -> Json:
    """Runs the same random programs with torch's own allocators and under uvmalloc."""
    outputs = []
    for native in (True, False):
        command = place.python(str(RANDOM_MOVES), "0", str(programs), native=native)
        done = run(command, place.environment(), clock.left(120), RANDOM_MOVES.name)
        outputs.append(done.stdout.splitlines())
    expected, seen = outputs
    if len(expected) != len(seen):
        raise CheckError(f"{len(seen)} lines under uvmalloc, {len(expected)} without")
    pairs = zip(expected, seen, strict=True)
    different = [(one, other) for one, other in pairs if one != other]
    if different:
        raise CheckError(f"without uvmalloc: {different[0][0]}; with it: {different[0][1]}")
    return {"programs": programs, "steps_compared": len(seen), "different": 0}


def served_training(place: Place, clock: Clock, folder: Path, training: Training) -> Json:
    """Torch keeps its own allocator. uvmalloc serves that allocator's calls of cudaMalloc."""
    native = train_once(place, clock, folder, training, native=True)
    reports = folder / "served"
    reports.mkdir()
    settings = with_cuda_calls_served({}, place.libraries / "libuvmalloc_preload.so")
    settings[REPORT_DIR] = str(reports)
    served = train_once(place, clock, folder, training, native=True, settings=settings)
    calls = [
        call["served"]
        for file in reports.glob("report.*.json")
        for call in json.loads(file.read_text()).get("cuda_calls", {}).values()
    ]
    if sum(calls) == 0:
        raise CheckError("no call was served")
    outcome, difference = compare_losses(native.losses, served.losses)
    if outcome == "different":
        raise CheckError(f"the losses differ by {difference:.2g}")
    return {
        "calls_served": sum(calls),
        "native_step_ms": native.step_ms,
        "served_step_ms": served.step_ms,
        "losses": outcome,
        "largest_relative_difference": difference,
    }


def evictions(
    place: Place,
    clock: Clock,
    folder: Path,
    training: Training,
    device_bytes: int,
    divisors: Sequence[float],
) -> Json:
    """Trains with a soft budget below the need, so that uvmalloc evicts pages and brings them back.

    The card itself never runs short of memory.
    """
    fits = train_once(place, clock, folder, training, native=False)
    need_bytes = fits.report["peak_bytes"]
    out: Json = {"need_mib": need_bytes // MIB, "step_ms": fits.step_ms, "budgets": {}}
    for divisor in divisors:
        for policy in ("auto", "lru"):
            soft_bytes = int(need_bytes / divisor)
            settings = {
                "UVMALLOC_POLICY": policy,
                "UVMALLOC_RESERVE": str(device_bytes - soft_bytes),
            }
            one = train_once(place, clock, folder, training, native=False, settings=settings)
            outcome, _ = compare_losses(fits.losses, one.losses)
            out["budgets"][f"need / {divisor}, {policy}"] = {
                "step_ms": one.step_ms,
                "slowdown": round(one.step_ms / fits.step_ms, 2),
                "losses": outcome,
            }
            if outcome == "different":
                raise CheckError(f"need / {divisor}, {policy}: the losses differ")
    return out
