"""Marks that a program puts into its trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvmalloc
from uvmalloc._trace.reader import MARK, read_trace

from tests.pytorch.conftest import Simulate

PROGRAM = """
import torch, uvmalloc
torch.ones(1, device='cuda')
uvmalloc.mark('a step')
uvmalloc.mark('é' * 3000)
uvmalloc.mark('x' + 'é' * 3000)
uvmalloc.mark('half of a pair: \\ud800')
"""


def test_marks_of_a_program_are_in_its_trace(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "marks.trace"
    simulate(PROGRAM, environment={"UVMALLOC_TRACE": str(file)}).check()
    trace = read_trace(file)
    marks = trace.events["extra"][trace.events["kind"] == MARK]
    assert [trace.text(MARK, int(number)) for number in marks] == [
        "a step",
        "é" * 2048,
        "x" + "é" * 2047,
        "half of a pair: ?",
    ]


def test_an_empty_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="the string is empty"):
        uvmalloc.mark("")


def test_a_mark_without_uvmalloc_does_nothing(simulate: Simulate) -> None:
    simulate(PROGRAM, native=True).check()
    simulate(PROGRAM).check()
