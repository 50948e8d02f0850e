"""The soak passes for a moment, and finds planted faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.hipify.test_translation import ROOT

MOMENT = "0.002"  # 7 s, and the rounds before it


def soak(hours: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the soak without scripts/soak, which builds: other tests would find half a library."""
    return run(sys.executable, "-m", "bench.programs.soak", hours, **environment)


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )


@pytest.mark.all
def test_a_short_soak_finds_nothing() -> None:
    done = soak(MOMENT)
    last = done.stdout.splitlines()[-1]
    assert " 0 wrong values, 0 hangs, 0 ends, " in last, done.stdout + done.stderr
    grown = re.search(r"([+-][\d.]+) % in the last half", last)
    assert grown is not None and float(grown[1]) < 10, last  # too short to check 1 %


@pytest.mark.all
@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("wrong", "first has other values in the round of 3"),
        ("hang", "first hangs in the round of seed 3"),
        ("crash", "first ended in the round of seed 3"),
        ("leak", "% in the last half"),
    ],
)
def test_a_planted_fault_is_found(planted: str, found: str) -> None:
    done = soak(MOMENT, SOAK_PLANTED=planted, SOAK_MOST_ROUND_SECONDS="60")
    assert done.returncode == 1, done.stdout + done.stderr
    assert found in done.stdout


@pytest.mark.parametrize("arguments", [(), ("x",), ("-1",), ("0",), ("0.0",), ("1", "2")])
def test_a_wrong_time_is_one_line(arguments: tuple[str, ...]) -> None:
    done = run(str(ROOT / "scripts" / "soak"), *arguments)
    said = " ".join(arguments)
    expected = f"the time is '{said}'; accepted: one number of hours above 0, such as 0.5"
    assert (done.returncode, done.stderr) == (2, f"uvmalloc: error: {expected}\n")
