"""Runs the parts of `scripts/bench --storage` and writes build/bench/storage.json."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from uvmalloc.environment import Machine, on_simulated_device, without_uvmalloc
from uvmalloc.libraries import Libraries

from bench.charts import draw_bars
from bench.environment import clean_environment
from bench.verdict import Target, verdict_table

ROOT = Path(__file__).resolve().parents[2]
MODEL_CHECKER = ROOT / "tests" / "hints" / "check_model.py"
MODELS = ("resnet18", "gpt2", "llama")
DEVICE_BYTES = 64 << 20


def compare(libraries: Libraries, file: Path, console: Console) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exported = {model: _here(libraries, "export_here", model, "instance", folder)
                    for model in MODELS}  # fmt: skip
        program = libraries.folder.parent / "bin" / "storage_bench"
        instances = [f"{model}={folder / model}.csv" for model in MODELS]
        native = _json([str(program), *instances])
        peaks = {model: {way: _here(libraries, "export_here", model, way, folder)
                         for way in ("eager", "planned")} for model in MODELS}  # fmt: skip
        streamed = _here(libraries, "stream_here", folder, DEVICE_BYTES, capacity=DEVICE_BYTES * 2)
    checked = _json([sys.executable, str(MODEL_CHECKER), "--json"])
    results = _results(native, exported, peaks, streamed, checked)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1))
    console.print(verdict_table(_targets(results)))
    ratios = {"height over the bound": {case: found["over_bound"]
                                        for case, found in native["packings"].items()}}  # fmt: skip
    title = "Packing: height over the live-range bound"
    for picture in draw_bars(ratios, title, "ratio", file.with_name("storage")):
        console.print(f"{picture}")


def _results(
    native: dict[str, Any],
    exported: dict[str, Any],
    peaks: dict[str, Any],
    streamed: dict[str, Any],
    checked: dict[str, Any],
) -> dict[str, Any]:
    packings = native["packings"]
    return {
        "weight_crossings": native["tensors"]["weight_crossings"],
        "colocated_transfers": native["tensors"]["colocated_transfers"],
        "stream_peak_over_window": streamed["peak_over_window"],
        "stream_read_over_file": streamed["read_over_file"],
        "pipeline_throughput": native["pipeline"]["ratio"],
        "spin_states": checked["states"],
        "spin_errors": checked["errors"],
        "plan_over_bound": max(found["over_bound"] for found in packings.values()),
        "plan_seconds": max(found["seconds"] for found in packings.values()),
        "view_hit_ns": native["views"]["hit_ns"],
        "view_hits": native["views"]["hits"],
        "export_peak_ratio": {
            model: found["planned"]["reserved"] / found["eager"]["reserved"]
            for model, found in peaks.items()
        },
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
    )
    targets = [Target(key, "", results[key], bound, at_most) for key, bound, at_most in bounds]
    for model, ratio in results["export_peak_ratio"].items():
        targets.append(Target("export_peak_ratio", model, ratio, 0.90, at_most=True))
    return targets


def _here(
    libraries: Libraries, module: str, *arguments: object, capacity: int | None = None
) -> dict[str, Any]:
    """A program on the simulated device with PyTorch's own allocator."""
    with tempfile.TemporaryDirectory() as folder:
        counters = Path(folder) / "sim.json"
        machine = Machine(1, capacity)
        environment = on_simulated_device(clean_environment(), libraries, machine, counters)
        command = [sys.executable, "-m", f"bench.storage.{module}", *map(str, arguments)]
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
