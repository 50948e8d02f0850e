"""Every public function has its rows in matrix.py, and every cell is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("matrix.py")

# The ways to use each public function; matrix.py runs them.
ROWS = (
    "second device",
    "side stream",
    "legacy default stream",
    "per-thread default stream",
    "no_grad",
    "inference_mode",
    "autocast",
    "inside a capture",
    "another thread reads",
    "two at once",
    "after close",
    "after fork",
    "tied weights",
    "SIGINT",
    "SIGTERM",
)

Cells = dict[tuple[str, str], str]  # outcomes, by function and row


def gaps(public: set[str], without_rows: set[str], cells: Cells) -> list[str]:
    """Returns what is missing in the table, and what should not be in it."""
    named = {name for name, _ in cells}
    found = [f"{name}: no rows" for name in sorted(public - named - without_rows)]
    found += [f"{name}: {row} is not there" for name in sorted(named) for row in ROWS
              if (name, row) not in cells]  # fmt: skip
    found += [f"{name}: {row} is no row" for name, row in cells if row not in ROWS]
    # Functions of torch itself are not in uvmalloc's lists.
    own = {name for name in named | without_rows if not name.startswith("torch.")}
    found += [f"{name}: is not public" for name in sorted(own - public)]
    found += [f"{name}: has rows and needs none" for name in sorted(named & without_rows)]
    return found


def lines(simulate: Simulate, *arguments: str) -> list[str]:
    # On some CPUs a product's last bits depend on the number of threads, which a new thread takes
    # only from this variable.
    alone = {"OMP_NUM_THREADS": "1"}
    return simulate(PROGRAM, *arguments, devices=2, environment=alone).check().stdout.splitlines()


def cells_of(simulate: Simulate) -> Cells:
    found = {}
    for line in lines(simulate, "cells"):
        name, row, outcome = line.split("|")
        found[name, row] = outcome
    return found


def test_every_public_function_is_right_in_every_row(simulate: Simulate) -> None:
    public, without_rows = (set(lines(simulate, what)) for what in ("names", "table"))
    cells = cells_of(simulate)
    assert gaps(public, without_rows, cells) == []
    assert [cell for cell, outcome in cells.items() if outcome == "wrong"] == []
    # All others are right, give the reason why nothing runs, or run alone.
    reasons = {outcome for outcome in cells.values() if outcome != "right"}
    alone = {outcome for outcome in reasons if re.fullmatch(r"signals \S+", outcome)}
    assert [reason for reason in reasons - alone if len(reason.split()) < 5] == []

    # The test notices a hole in the table.
    assert gaps(public | {"uvmalloc.new"}, without_rows, cells) == ["uvmalloc.new: no rows"]
    for row in ROWS:
        rest = {cell: outcome for cell, outcome in cells.items() if cell[1] != row}
        assert len(gaps(public, without_rows, rest)) == len({name for name, _ in cells})

    for command in sorted(alone):
        run = simulate(PROGRAM, *command.split(), devices=2)
        assert (run.returncode, run.stdout) == (7, "right after SIGINT\n"), (command, run.stderr)


PLANTED = """
import runpy, sys, torch, uvmalloc
from uvmalloc import torch_names
from uvmalloc.pipelines.pipeline import Pipeline
torch.cuda.init()
def planted(): pass
planted.__module__ = torch_names.__name__
uvmalloc.planted = torch_names.planted = Pipeline.planted = planted
uvmalloc.__all__.append("planted")
torch.library.define("uvmalloc::planted", "(Tensor x) -> Tensor")
program = sys.argv.pop(1)
sys.argv[1:] = ["names"]
runpy.run_path(program, run_name="__main__")
"""


def test_a_new_public_function_is_found(simulate: Simulate) -> None:
    before = set(lines(simulate, "names"))
    after = set(simulate(PLANTED, str(PROGRAM)).check().stdout.splitlines())
    assert before < after
    assert after - before == {
        "Pipeline.planted",
        "ops.planted",
        "torch_names.planted",
        "uvmalloc.planted",
    }
