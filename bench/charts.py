"""The setup of all charts, and the charts of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

matplotlib.rcParams["svg.hashsalt"] = "uvmalloc"  # equal figures give equal files
# From a palette that is distinguishable with any colour vision.
OURS, NATIVE, ARENA = "#0072b2", "#d55e00", "#56b4e9"


def draw_bars(
    ratios: Mapping[str, Mapping[str, float]], title: str, label: str, file: Path
) -> list[Path]:
    """Draws a group of bars per case, a bar per allocator. Writes PNG and SVG beside `file`."""
    cases = list(dict.fromkeys(case for of_one in ratios.values() for case in of_one))
    figure, axes = plt.subplots(
        figsize=(max(6.0, 0.35 * len(cases) * (len(ratios) + 1)), 4), layout="constrained"
    )
    width = 0.8 / max(1, len(ratios))
    for index, (allocator, of_one) in enumerate(ratios.items()):
        places = [cases.index(case) + (index - (len(ratios) - 1) / 2) * width for case in of_one]
        bars = axes.bar(places, list(of_one.values()), width, label=allocator)
        axes.bar_label(bars, fmt="%.1f", fontsize=7)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(cases)), cases)
    axes.set_ylabel(label)
    axes.set_title(title)
    axes.legend()
    written = [file.with_suffix(suffix) for suffix in (".png", ".svg")]
    for picture in written:
        figure.savefig(picture, dpi=120)
    plt.close(figure)
    return written


def draw_model(ratios: Sequence[tuple[str, float, bool]], file: Path) -> None:
    """Draws a bar per figure: the model's value over the measured one. Fitted figures are pale."""
    names = [name for name, _, _ in ratios]
    figure, axes = plt.subplots(figsize=(9, 0.24 * len(ratios) + 1), layout="constrained")
    colours = ["#b8c4d6" if fitted else "#2f5d9b" for _, _, fitted in ratios]
    bars = axes.barh(range(len(ratios)), [ratio for _, ratio, _ in ratios], color=colours)
    axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.axvspan(0.75, 1.25, color="#2f5d9b", alpha=0.08)
    axes.set_yticks(range(len(ratios)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("model / measurement; pale: fitted; shaded: within 25 %")
    figure.savefig(file)
    plt.close(figure)
