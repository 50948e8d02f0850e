"""Every kind of tensor, moved in every way: a program sees what it sees without uvmalloc."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pytorch.conftest import Simulate

PROGRAM = Path(__file__).with_name("every_move.py")


def test_every_move_gives_what_it_gives_without_uvmalloc(simulate: Simulate) -> None:
    def lines(**options: Any) -> list[str]:
        run = simulate(PROGRAM, devices=2, timeout_seconds=240, **options).check()
        return run.stdout.splitlines()

    native = lines(native=True)
    assert len(native) > 400
    assert not [line for line in native if line.endswith("|failed")]
    for mode in ("cow", "copy"):
        ours = lines(environment={"UVMALLOC_MOVE": mode})
        differences = [pair for pair in zip(native, ours, strict=True) if pair[0] != pair[1]]
        assert not differences, f"{mode}: {differences[0]}"
