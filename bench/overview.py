"""The picture of README.md: what a program gets from uvmalloc, on the simulated device.

    build/venv/bin/python -m bench.overview [FILE.svg]       default: docs/pictures/overview.svg

On the left examples/train_gpt.py on devices of less and less memory, with uvmalloc and without it.
On the right the most memory that loading a checkpoint takes on a machine where host and device
share one memory. The figures are printed too. It takes two minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from uvmalloc.libraries import find_libraries

from bench.charts import NATIVE, OURS, plt
from bench.programs.compare import load_peaks

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
STEPS = 5
CAPACITIES_MIB = (200, 175, 150, 125, 100)
CHECKPOINT_BYTES = 256 * MIB
WAYS = {
    "torch.load, to": 'torch.load(f)\n.to("cuda")',
    "load_state_dict, assign, to": 'load_state_dict(...,\nassign=True).to("cuda")',
    "load_file on device": 'safetensors\nload_file(f, "cuda")',
}


@dataclass(frozen=True)
class Outcome:
    ended_well: bool
    moved_mib_per_step: float = 0.0
    peak_mib: float = 0.0  # of all memory that uvmalloc served


def train(capacity_mib: int, native: bool, folder: Path) -> Outcome:
    """Runs the training. Counts bytes moved between host and device by page faults, prefetches and
    evictions.
    """
    report = folder / "report.json"
    command = [str(Path(sys.executable).with_name("uvmalloc")), "sim", "--no-report"]
    command += ["--report", str(report), "--capacity", f"{capacity_mib}MiB"]
    command += ["--native"] if native else []
    program = [str(ROOT / "examples" / "train_gpt.py"), "--steps", str(STEPS)]
    finished = subprocess.run(
        [*command, "--", sys.executable, *program], capture_output=True, text=True
    )
    if finished.returncode != 0:
        if "OutOfMemoryError" not in finished.stderr:
            sys.exit(f"the program failed:\n{finished.stderr}")
        return Outcome(False)
    found = json.loads(report.read_text(encoding="utf-8"))
    counters = found["simulator"]["counters"]
    kinds = ("migrated_bytes_to_device", "migrated_bytes_to_host", "evicted_bytes")
    moved_bytes = sum(counters[kind] for kind in kinds)
    return Outcome(True, moved_bytes / MIB / STEPS, found.get("peak_bytes", 0) / MIB)


def draw_training(axes: plt.Axes, found: dict[str, list[Outcome]]) -> None:
    needed_mib = max(outcome.peak_mib for outcome in found["uvmalloc"])
    axes.set_title(f"Training a GPT that needs {needed_mib:.0f} MiB: traffic per step", fontsize=9)
    for index, (name, color) in enumerate((("uvmalloc", OURS), ("torch alone", NATIVE))):
        for place, outcome in enumerate(found[name]):
            left = place + (index - 0.5) * 0.4
            text = f"{outcome.moved_mib_per_step:.0f}" if outcome.ended_well else "out of\nmemory"
            axes.bar(left, outcome.moved_mib_per_step, 0.38, color=color)
            height = outcome.moved_mib_per_step
            axes.annotate(
                text, (left, height), (0, 2), textcoords="offset points", ha="center", fontsize=6.5
            )
    axes.set_xticks(range(len(CAPACITIES_MIB)), [str(size) for size in CAPACITIES_MIB])
    axes.set_xlabel("memory of the device, MiB", fontsize=8)
    axes.set_ylabel("MiB between host and device", fontsize=8)


def draw_loading(axes: plt.Axes, ratios: dict[str, list[float]]) -> None:
    axes.set_title("Loading a checkpoint, host and device share one memory", fontsize=9)
    for index, (name, color) in enumerate((("uvmalloc", OURS), ("torch alone", NATIVE))):
        lefts = [place + (index - 0.5) * 0.4 for place in range(len(WAYS))]
        bars = axes.bar(lefts, ratios[name], 0.38, color=color, label=name)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks(range(len(WAYS)), list(WAYS.values()), fontsize=7)
    axes.set_ylabel("peak memory / checkpoint", fontsize=8)
    axes.legend(fontsize=8, frameon=False)


def draw(training: dict[str, list[Outcome]], loading: dict[str, list[float]], file: Path) -> None:
    """Draws both charts. Equal figures give equal files. Text stays text in the SVG."""
    with plt.rc_context({"svg.fonttype": "none"}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
        draw_training(left, training)
        draw_loading(right, loading)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=7)
            axes.margins(y=0.15)
        figure.savefig(file, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "docs" / "pictures" / "overview.svg"
    parser.add_argument("file", type=Path, nargs="?", default=default)
    file = parser.parse_args().file
    with tempfile.TemporaryDirectory() as folder:
        training = {
            name: [train(size, native, Path(folder)) for size in CAPACITIES_MIB]
            for name, native in (("uvmalloc", False), ("torch alone", True))
        }
    peaks = load_peaks(find_libraries(), CHECKPOINT_BYTES)
    loading = {
        name: [peaks[way]["integrated"][key]["ratio"] for way in WAYS]
        for name, key in (("uvmalloc", "uvmalloc"), ("torch alone", "native"))
    }
    figures = {name: [vars(outcome) for outcome in of_one] for name, of_one in training.items()}
    print(json.dumps({"training": figures, "loading": loading}, indent=1))
    draw(training, loading, file)


if __name__ == "__main__":
    main()
