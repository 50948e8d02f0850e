"""Pictures of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw_bars(
    ratios: Mapping[str, Mapping[str, float]], title: str, label: str, file: Path
) -> list[Path]:
    """A group of bars per case, a bar per allocator; written as PNG and SVG beside `file`."""
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
