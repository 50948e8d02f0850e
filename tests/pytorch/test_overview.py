"""The picture of README.md, drawn from given figures."""

from __future__ import annotations

from pathlib import Path

from bench.overview import CAPACITIES_MIB, WAYS, Outcome, draw


def test_the_same_figures_make_the_same_picture(tmp_path: Path) -> None:
    training = {
        "uvmalloc": [Outcome(True, 10.0 * place, 151.0) for place in range(len(CAPACITIES_MIB))],
        "torch alone": [Outcome(place < 2) for place in range(len(CAPACITIES_MIB))],
    }
    loading = {"uvmalloc": [1.0] * len(WAYS), "torch alone": [2.0] * len(WAYS)}
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    draw(training, loading, first)
    draw(training, loading, second)
    text = first.read_text(encoding="utf-8")
    assert text == second.read_text(encoding="utf-8")
    assert "that needs 151 MiB" in text
    assert text.count("out of") == len(CAPACITIES_MIB) - 2
