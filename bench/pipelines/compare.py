"""Runs the parts of `scripts/bench --pipelines` and writes build/bench/pipelines.json."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from uvmalloc._cli.environment import Machine, on_simulated_device, without_uvmalloc
from uvmalloc.libraries import Libraries

from bench.environment import clean_environment
from bench.pipelines.chart import draw_pipelines
from bench.verdict import Target, verdict_table

ROOT = Path(__file__).resolve().parents[2]
MODEL_CHECKER = ROOT / "tests" / "pipelines" / "credits" / "check_model.py"
MODELS = ("resnet18", "gpt2", "llama")
DEVICE_BYTES = 64 << 20


def compare(
    libraries: Libraries, instances: Mapping[str, Path], file: Path, console: Console
) -> None:
    """Measures and writes `file`. `instances` are further problems to pack: CSV files by name."""
    programs = libraries.folder.parent / "bin"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exported = {model: _here(libraries, "export_here", model, "instance", folder)
                    for model in MODELS}  # fmt: skip
        given = {**{model: folder / f"{model}.csv" for model in MODELS}, **instances}
        native = _json([str(programs / "pipelines_bench"),
                        *(f"{case}={problem}" for case, problem in given.items())])  # fmt: skip
        peaks = {model: {way: _here(libraries, "export_here", model, way, folder)
                         for way in ("eager", "planned")} for model in MODELS}  # fmt: skip
        streamed = _here(libraries, "stream_here", folder, DEVICE_BYTES, capacity=DEVICE_BYTES)
    tensors = _simulated(libraries, [str(programs / "resident_bench")])
    checked = _json([sys.executable, str(MODEL_CHECKER), "--json"])
    results = _results(native, tensors, exported, peaks, streamed, checked)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1))
    console.print(verdict_table(_targets(results)))
    console.print(f"{draw_pipelines(results, file.with_suffix('.svg'))}")


def _results(
    native: dict[str, Any],
    tensors: dict[str, Any],
    exported: dict[str, Any],
    peaks: dict[str, Any],
    streamed: dict[str, Any],
    checked: dict[str, Any],
) -> dict[str, Any]:
    packings = native["packings"]
    return {
        **tensors,
        "stream_peak_over_window": streamed["peak_over_window"],
        "stream_read_over_file": streamed["read_over_file"],
        "pipeline_throughput": native["pipeline"]["ratio"],
        "spin_states": checked["states"],
        "spin_errors": checked["errors"],
        "plan_over_bound": max(found["over_bound"] for found in packings.values()),
        "plan_seconds": max(found["seconds"] for found in packings.values()),
        "plan_instances": len(packings),
        "view_hit_ns": native["views"]["hit_ns"],
        "view_hits": native["views"]["hits"],
        "export_peak_ratio": {
            model: found["planned"]["reserved"] / found["eager"]["reserved"]
            for model, found in peaks.items()
        },
        "export_different": sum(found["different"] for found in exported.values()),
        "details": {"native": native, "exported": exported, "peaks": peaks, "streamed": streamed},
    }


def _targets(results: dict[str, Any]) -> list[Target]:
    bounds: Sequence[tuple[str, float, bool]] = (
        ("weight_crossings", 2, True),
        ("colocated_transfers", 0, True),
        ("stream_peak_over_window", 1.05, True),
        ("stream_read_over_file", 1.01, True),
        ("pipeline_throughput", 0.95, False),
        ("spin_states", 10_000, False),
        ("spin_errors", 0, True),
        ("plan_over_bound", 1.02, True),
        ("plan_seconds", 1, True),
        ("view_hit_ns", 100, True),
        ("view_hits", 0.99, False),
        ("export_different", 0, True),
    )
    targets = [Target(key, "", results[key], bound, at_most) for key, bound, at_most in bounds]
    for model, ratio in results["export_peak_ratio"].items():
        targets.append(Target("export_peak_ratio", model, ratio, 0.90, at_most=True))
    return targets


def _here(
    libraries: Libraries, module: str, *arguments: object, capacity: int | None = None
) -> dict[str, Any]:
    """Runs a program on the simulated device with PyTorch's own allocator."""
    command = [sys.executable, "-m", f"bench.pipelines.{module}", *map(str, arguments)]
    return _simulated(libraries, command, capacity)


def _simulated(
    libraries: Libraries, command: Sequence[str], capacity: int | None = None
) -> dict[str, Any]:
    machine = Machine(1, capacity)
    environment = on_simulated_device(clean_environment(), libraries, machine, None)
    environment = {**without_uvmalloc(environment), "PYTHONPATH": str(ROOT)}
    environment["UVMALLOC_LIB_DIR"] = str(libraries.folder)
    return _json(command, environment)


def _json(command: Sequence[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    ended = subprocess.run(
        list(command), env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    return json.loads(ended.stdout)
