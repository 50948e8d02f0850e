"""Random models, files and callers: streams, loads and pipelines give the same results as PyTorch.

`python -m bench.programs.random_streams --seconds 600` on a simulated machine searches longer.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from bench.programs import random_streams
from tests.pytorch.conftest import Simulate, SimulatedRun

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CASES_EACH = 70


def run(simulate: Simulate, *options: str, native: bool = False) -> SimulatedRun:
    return simulate(
        Path(inspect.getfile(random_streams)),
        *options,
        native=native,
        devices=2,
        environment={"PYTHONPATH": str(ROOT)},
        timeout_seconds=600,
    )


@pytest.mark.parametrize(("native", "seed"), [(False, 0), (True, CASES_EACH)])
@pytest.mark.parametrize(
    ("first", "cases"), [(0, 25), pytest.param(25, CASES_EACH - 25, marks=pytest.mark.all)]
)
def test_random_cases_give_the_same(
    simulate: Simulate, native: bool, seed: int, first: int, cases: int
) -> None:
    ended = run(simulate, "--cases", str(cases), "--seed", str(seed + first), native=native)
    assert ended.stdout.splitlines() == [f"{cases} cases, 0 differ"], ended.stderr


@pytest.mark.parametrize("fault", random_streams.FAULTS)
def test_a_planted_fault_is_found(simulate: Simulate, fault: str) -> None:
    ended = run(simulate, "--planted", fault, "--cases", str(CASES_EACH))
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.splitlines()[-1].endswith("cases, 1 differ")
    assert ended.stdout.startswith("seed ")
