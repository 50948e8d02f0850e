"""Programs that do not use PyTorch, under the preload."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console
from uvmalloc.libraries import find_libraries

from bench.any_program.compare import SMOKE, compare, fork_runs_failed
from bench.any_program.figures import write_figures


def test_figures_of_a_program_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "any_program.json"
    write_figures({"hip_conformance": [1, 1]}, file)
    compare(find_libraries(), SMOKE, file, Console(file=io.StringIO()))
    figures = json.loads(file.read_text())
    assert figures["hip_conformance"] == [1, 1], "figures of others stay"
    assert set(figures["pair_ns"]["uvmalloc"]) == set(figures["pair_ns"]["driver"])
    steps = figures["driver_allocations_per_step"]
    assert steps["driver"][-1] == 72
    assert steps["uvmalloc"][1:] == [0] * 9
    assert set(figures["startup_ms"]) == {"sh", "git", "python", "gcc"}
    assert figures["fork_runs_failed"] == 0


def test_programs_that_fork_start_others_and_exit_at_any_moment() -> None:
    assert fork_runs_failed(find_libraries(), 25) == 0
