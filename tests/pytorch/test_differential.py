"""Nobody can tell moves from copies: random programs give the same with and without uvmalloc."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

PROGRAM = Path(__file__).with_name("random_moves.py")
PROGRAMS_EACH = 25


@pytest.mark.parametrize("first", range(0, 5 * PROGRAMS_EACH, PROGRAMS_EACH))
def test_random_programs_give_the_same(simulate: Simulate, first: int) -> None:
    arguments = (str(first), str(PROGRAMS_EACH))
    native = simulate(PROGRAM, *arguments, native=True).check()
    ours = simulate(PROGRAM, *arguments).check()
    for expected, seen in zip(native.stdout.splitlines(), ours.stdout.splitlines(), strict=True):
        assert seen == expected
    assert ours.report["moves"]["total"] > PROGRAMS_EACH
    assert ours.report["materializations"]["copies"] > 0
    assert ours.report["materializations"]["steals"] > 0
