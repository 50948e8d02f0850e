"""Every kind of tensor, moved in every way: a program sees the same with and without uvmalloc."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.conftest import Simulate

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("every_move.py")

# Original strides of tensors with gaps or overlaps between their elements, by kind.
OPEN_STRIDES = {
    "gaps": (1024, 2),
    "expanded whole": (0, 1024, 1),
    "overlapping": (512, 1),
    "unfolded": (512, 1),
    "real part": (2048, 2),
}
WAYS_THAT_COPY = ("copy", "contiguous", "into", "like", "new")


def lines(simulate: Simulate, *arguments: str, **options: Any) -> list[str]:
    run = simulate(PROGRAM, *arguments, devices=2, timeout_seconds=240, **options).check()
    return run.stdout.splitlines()


def test_every_move_gives_what_it_gives_without_uvmalloc(simulate: Simulate) -> None:
    native = lines(simulate, native=True)
    assert len(native) > 400
    assert not [line for line in native if line.endswith("|failed")]
    for mode in ("cow", "copy"):
        ours = lines(simulate, environment={"UVMALLOC_MOVE": mode})
        differences = [pair for pair in zip(native, ours, strict=True) if pair[0] != pair[1]]
        assert not differences, f"{mode}: {differences[0]}"


def with_open_strides(line: str) -> str:
    """Replaces the strides of a copy, which closed the gaps, by those that an alias keeps."""
    kind, way, *rest = line.split("|")
    if kind not in OPEN_STRIDES or way in WAYS_THAT_COPY:
        return line
    [seen, *others] = ast.literal_eval("|".join(rest))
    seen[7] = OPEN_STRIDES[kind]
    return f"{kind}|{way}|{[seen, *others]}"


@pytest.mark.all
def test_an_alias_that_nobody_writes_to_differs_in_strides_alone(simulate: Simulate) -> None:
    native = lines(simulate, "reads", native=True)
    assert len(native) > 400
    ours = lines(simulate, "reads", environment={"UVMALLOC_MOVE": "alias"})
    expected = [with_open_strides(line) for line in native]
    assert sum(pair[0] != pair[1] for pair in zip(native, expected, strict=True)) == 40
    differences = [pair for pair in zip(expected, ours, strict=True) if pair[0] != pair[1]]
    assert not differences, differences[0]
