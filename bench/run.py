"""Cache-hit pairs of uvmalloc and of PyTorch's native allocator on the simulated device.

The two are measured in processes of their own, interleaved in one run. Prints a table and writes
build/bench/pairs.json. Nanoseconds of one machine mean little; the ratio in one run does.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "pytorch" / "python"))

import matplotlib  # noqa: E402

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

SIZES = {
    "512 B": 512,
    "64 KiB": 64 << 10,
    "2 MiB": 2 << 20,
    "20 MiB": 20 << 20,
    "256 MiB": 256 << 20,
}
LIBRARY = ROOT / "build" / "release" / "lib" / "libuvmalloc_bench_torch.so"


def measure(native: bool) -> dict:
    """One process: the allocator's name and nanoseconds per pair by size."""
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report"]
    command += ["--native"] if native else []
    command += ["--", sys.executable, str(ROOT / "bench" / "torch_pairs.py"), str(LIBRARY)]
    command += [str(size) for size in SIZES.values()]
    environment_path = str(ROOT / "pytorch" / "python")
    done = subprocess.run(
        ["env", f"PYTHONPATH={environment_path}", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(command)} failed with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def draw(ratios: dict[str, float], file: Path) -> None:
    """A bar per size: how many times uvmalloc's pair fits into the native one."""
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    bars = axes.bar(list(ratios), list(ratios.values()), color="tab:green")
    axes.bar_label(bars, fmt="%.1f")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylabel("native / uvmalloc, time per pair")
    axes.set_title("Allocate and free from the cache, one thread")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=5, help="interleaved rounds; the median counts"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench" / "pairs.json")
    arguments = parser.parse_args()

    samples: dict[str, dict[str, list[float]]] = {}
    for _ in range(arguments.rounds):
        for native in (True, False):
            result = measure(native)
            per_size = samples.setdefault(result["allocator"], {name: [] for name in SIZES})
            for name, size in SIZES.items():
                per_size[name].append(result["pair_ns"][str(size)])

    medians = {
        allocator: {name: statistics.median(values) for name, values in per_size.items()}
        for allocator, per_size in samples.items()
    }
    if set(medians) != {"native", "uvmalloc"}:
        sys.exit(f"bench: measured {sorted(medians)}, not torch's native allocator beside uvmalloc")
    table = Table(title=f"ns per cache-hit pair, one thread, median of {arguments.rounds} rounds")
    for column in ("size", "native", "uvmalloc", "native / uvmalloc"):
        table.add_column(column, justify="right")
    ratios = {}
    for name in SIZES:
        native, ours = medians["native"][name], medians["uvmalloc"][name]
        ratios[name] = native / ours
        table.add_row(name, f"{native:.0f}", f"{ours:.0f}", f"{ratios[name]:.2f}")
    Console().print(table)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(
        json.dumps({"pair_ns": medians, "native_over_uvmalloc": ratios}, indent=1)
    )

    draw(ratios, arguments.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
