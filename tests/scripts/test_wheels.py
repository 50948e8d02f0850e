"""bench.wheels counts the wheels whose programs are right with and without uvmalloc."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.wheels import started
from bench.wheels.started import Wheel

PROGRAMS = {
    "right": "print('right')",
    "wrong": "raise ValueError('the bytes differ')",
    "unchecked": "pass",
    "served_only": "import os\nif 'LD_PRELOAD' in os.environ: raise ValueError('only served')\n"
    "print('right')",
    "static": "import ctypes\ndriver = ctypes.CDLL('libcuda.so.1')\ndriver.cuInit(0)\n"
    "table = bytes.fromhex('6bd5fb6c5bf4e74a8987d93912fd9df9')\n"
    "assert driver.cuGetExportTable(ctypes.byref(ctypes.c_void_p()), table) == 0, 'refused'",
}


def test_only_programs_that_are_right_both_times_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(started, "HERE", tmp_path)
    wheels = tuple(Wheel(name, "pytest", f"{name}.py") for name in PROGRAMS)
    monkeypatch.setattr(started, "WHEELS", wheels)
    figures = started.measure(Path(sys.executable))
    assert (figures["wheels_started"], figures["wheels_tried"]) == (1, 5)
    reasons = {name: wheel["reason"] for name, wheel in figures["wheels"].items()}
    assert reasons["right"] is None
    assert reasons["wrong"] == "ValueError: the bytes differ"
    assert reasons["unchecked"] == "ended with exit code 0"
    assert reasons["served_only"] == "ValueError: only served"
    assert "contains CUDA's static runtime" in reasons["static"]
    assert {wheel["version"] for wheel in figures["wheels"].values()} == {pytest.__version__}
