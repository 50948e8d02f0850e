"""Programs on devices that are too small: a kernel touches each byte of some memory only once."""

from __future__ import annotations

import json
from typing import Any

from bench.oversubscription import in_place
from tests.pytorch.conftest import Simulate, SimulatedRun

ENVIRONMENT = {"UVMSIM_MACHINE": in_place.MACHINE}
# For the optimizer's program: fewer rows than the benchmark has, and a capacity to match.
ROWS, CAPACITY = "512", "112MiB"


def decode(simulate: Simulate, rows: int, capacity: str) -> tuple[dict[str, Any], SimulatedRun]:
    run = simulate(
        in_place.PROGRAM, str(rows), "20", capacity=capacity, policy="planned",
        environment=ENVIRONMENT,
    ).check()  # fmt: skip
    return json.loads(run.stdout), run


def test_weights_that_are_read_once_stay_on_the_host_and_steps_are_shorter(
    simulate: Simulate,
) -> None:
    few, many = in_place.FEW_ROWS, in_place.FEW_ROWS + 1
    enough, _ = decode(simulate, few, "1GiB")
    short, run = decode(simulate, few, "36MiB")
    moved, other = decode(simulate, many, "36MiB")
    assert short["sums"] == enough["sums"]
    assert run.report["live_plan"]["in_place_pages"] > 0
    # Until the step is known, pages arrive as under `lru`.
    brought = run.report["live_plan"]["brought_pages"]
    assert brought < 0.5 * other.report["live_plan"]["brought_pages"]
    assert run.sim["remote_access_bytes"] > 0
    assert other.report["live_plan"]["in_place_pages"] == 0
    assert other.report["live_plan"]["brought_pages"] > 100
    assert short["step_ns"] < 0.7 * moved["step_ns"]


def test_state_of_a_fused_optimizer_stays_on_the_host_and_is_written_there(
    simulate: Simulate,
) -> None:
    def run(kind: str, capacity: str) -> SimulatedRun:
        return simulate(
            in_place.OPTIMIZER_PROGRAM, kind, ROWS, capacity=capacity, policy="planned",
            environment=ENVIRONMENT,
        ).check()  # fmt: skip

    enough = json.loads(run("fused", in_place.ENOUGH).stdout)
    fused, default = (run(kind, CAPACITY) for kind in ("fused", "default"))
    short = json.loads(fused.stdout)
    assert short["sums"] == enough["sums"]
    assert fused.report["live_plan"]["in_place_pages"] > 0
    assert fused.sim["remote_access_bytes"] > 0
    assert fused.report["live_plan"]["brought_pages"] < default.report["live_plan"]["brought_pages"]
    assert short["step_ns"] < json.loads(default.stdout)["step_ns"]
