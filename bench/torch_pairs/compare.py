"""Measures cache-hit pairs of uvmalloc and of PyTorch's native allocator on the simulated device.

The two run in separate processes, interleaved in one run. Absolute nanoseconds of a machine mean
little; the ratio within one run is meaningful.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from uvmalloc.libraries import LIB_DIR_VARIABLE, Libraries

from bench.charts import draw_bars
from bench.environment import clean_environment

SIZES = {
    "512 B": 512,
    "64 KiB": 64 << 10,
    "2 MiB": 2 << 20,
    "20 MiB": 20 << 20,
    "256 MiB": 256 << 20,
}


MEASURE_HERE = Path(__file__).resolve().parent / "measure_here.py"


def library(libraries: Libraries) -> Path:
    """Returns the path of the measuring module, which is not in a build without torch."""
    return libraries.folder / "libuvmalloc_bench_torch.so"


def measure(libraries: Libraries, native: bool) -> dict:
    """Runs one process. Returns the allocator's name and nanoseconds per pair by size."""
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report"]
    command += ["--native"] if native else []
    command += ["--", sys.executable, str(MEASURE_HERE), str(library(libraries))]
    command += [str(size) for size in SIZES.values()]
    environment = clean_environment() | {LIB_DIR_VARIABLE: str(libraries.folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(command)} failed with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def compare(libraries: Libraries, rounds: int, file: Path, console: Console) -> None:
    """Measures, prints a table, and writes `file` and a chart beside it."""
    samples: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for native in (True, False):
            result = measure(libraries, native)
            per_size = samples.setdefault(result["allocator"], {name: [] for name in SIZES})
            for name, size in SIZES.items():
                per_size[name].append(result["pair_ns"][str(size)])

    medians = {
        allocator: {name: statistics.median(values) for name, values in per_size.items()}
        for allocator, per_size in samples.items()
    }
    if set(medians) != {"native", "uvmalloc"}:
        sys.exit(f"bench: measured {sorted(medians)}, not torch's native allocator beside uvmalloc")
    table = Table(title=f"ns per cache-hit pair through PyTorch, median of {rounds} rounds")
    for column in ("size", "native", "uvmalloc", "native / uvmalloc"):
        table.add_column(column, justify="right")
    ratios = {}
    for name in SIZES:
        native_ns, ours = medians["native"][name], medians["uvmalloc"][name]
        ratios[name] = native_ns / ours
        table.add_row(name, f"{native_ns:.0f}", f"{ours:.0f}", f"{ratios[name]:.2f}")
    console.print(table)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"pair_ns": medians, "native_over_uvmalloc": ratios}, indent=1))
    draw_bars(
        {"native": ratios},
        "Allocate and free from the cache through PyTorch",
        "native / uvmalloc, time per pair",
        file,
    )
