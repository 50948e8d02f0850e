"""Random exported programs do the same from a plan as from their module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

ROOT = Path(__file__).resolve().parents[2]


def run(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.pytorch.plan_fuzz", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("programs", [15, pytest.param(135, marks=pytest.mark.all)])
def test_plans_do_what_modules_do(clean_environment: dict[str, str], programs: int) -> None:
    done = run(clean_environment, "--programs", str(programs))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {what: int(count) for count, what in
             (line.strip().split(" ", 1) for line in done.stdout.splitlines())}  # fmt: skip
    assert found["differ"] == 0
    assert found["with an arena"] > 0.5 * programs
    assert found["results"] > 2 * programs
    assert found["errors"] > 0.9 * programs
    if programs < 100:
        return  # too few for every kind of program
    assert found["with mutations"] > 0.13 * programs
    assert found["refused"] > 0
    assert found["in threads"] > 0.17 * programs


@pytest.mark.slow
@pytest.mark.all
def test_plans_do_what_modules_do_on_a_device(simulate: Simulate) -> None:
    done = simulate(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "sys.argv = ['plan_fuzz', '--programs', '25', '--seed', '200', '--device', 'cuda']\n"
        "from tests.pytorch.plan_fuzz import main\nsys.exit(main())\n",
        timeout_seconds=600,
    ).check()
    assert done.stdout.endswith("\n0 differ\n")


@pytest.mark.slow
@pytest.mark.all
def test_faults_of_plans_are_found(clean_environment: dict[str, str]) -> None:
    done = run(clean_environment, "--faults")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": program ") == 8
