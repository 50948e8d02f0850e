"""No program can tell a move from a copy: random programs give the same without uvmalloc."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from uvmalloc.libraries import Libraries

from bench.programs import differential

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS_EACH = 25


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.all) for first in (25, 50, 75, 100))]
)
def test_random_programs_give_the_same(
    libraries: Libraries, clean_environment: dict[str, str], first: int
) -> None:
    differences, report = differential.compare_batch(
        libraries, first, PROGRAMS_EACH, clean_environment
    )
    assert differences == []
    assert report["moves"]["total"] > PROGRAMS_EACH
    assert report["materializations"]["copies"] > 0
    assert report["materializations"]["steals"] > 0


def test_it_runs_as_a_program(clean_environment: dict[str, str]) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bench.programs.differential", *options],
            cwd=ROOT,
            env=clean_environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    done = run("--programs", "2", "--seed", "7")
    assert (done.returncode, done.stdout) == (0, "2 programs, 0 differ\n"), done.stderr
    refused = run("--programs", "none")
    assert refused.returncode == 2 and "'none'; accepted: a number" in refused.stderr


def test_a_difference_and_an_early_end_are_found(
    libraries: Libraries,
    clean_environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\n"
        "torch.cuda.init()\n"
        "name = torch.cuda.get_allocator_backend()\n"
        "print(1, 'same')\n"
        "print(2, name)\n"
        "print(3, 'same', flush=True)\n"
        "if name == 'uvmalloc': sys.exit('gone')\n"
        "print(4, 'more')\n"
    )
    monkeypatch.setattr(differential, "PROGRAM", program)
    found, _ = differential.compare_batch(libraries, 1, 4, clean_environment)
    assert found == [
        differential.Difference(2, "2 native", "2 uvmalloc"),
        differential.Difference(4, "4 more", "exit code 1: gone"),
    ]
