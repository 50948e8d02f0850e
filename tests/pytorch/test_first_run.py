"""The pictures of docs/first-run.md, drawn from given figures."""

from __future__ import annotations

import re
from pathlib import Path

from bench.first_run import ROOT, STEPS, draw


def figures_of_page() -> list[str]:
    """Returns the times that the page's text names for its second picture."""
    page = (ROOT / "docs" / "first-run.md").read_text(encoding="utf-8")
    text = page.partition("![Time of a step: ")[2].partition("]")[0]
    return re.findall(r"[\d.]+ ms", text)


def test_the_same_figures_make_the_same_picture(tmp_path: Path) -> None:
    step_ms = dict(zip(STEPS, (1.0, 20.0, 3.0, 1.5), strict=True))
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    draw(step_ms, first)
    draw(step_ms, second)
    text = first.read_text(encoding="utf-8")
    assert text == second.read_text(encoding="utf-8")
    assert re.findall(r"[\d.]+ ms(?=<)", text) == ["1.0 ms", "20.0 ms", "3.0 ms", "1.5 ms"]


def test_the_page_names_the_figures_of_its_picture() -> None:
    picture = (ROOT / "docs" / "pictures" / "first-run.svg").read_text(encoding="utf-8")
    assert re.findall(r"[\d.]+ ms(?=<)", picture) == figures_of_page()
    assert len(figures_of_page()) == len(STEPS)
