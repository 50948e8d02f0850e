"""The picture of docs/reference/pipelines.md.

    build/venv/bin/python -m bench.pipelines.chart [PIPELINES.json [FILE.svg]]

Draws the figures written by scripts/bench --pipelines, and prints them as rows of a table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.charts import ARENA, NATIVE, OURS, plt

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
NAMES = {"resnet18": "ResNet-18", "gpt2": "GPT-2", "llama": "Llama"}


def draw_pipelines(results: dict[str, Any], file: Path) -> Path:
    """Draws the memory of real models on the left, the packings of all problems on the right."""
    details = results["details"]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(1, 2)
    )
    peaks = details["peaks"]
    series = (
        ("eager", "reserved", NATIVE, "PyTorch's allocator, eager"),
        ("planned", "reserved", OURS, "the same, planned run"),
        ("planned", "arena", ARENA, "of that the arena"),
    )
    for index, (way, figure_name, color, label) in enumerate(series):
        places = [number + (index - 1) * 0.28 for number in range(len(peaks))]
        heights = [found[way][figure_name] / MIB for found in peaks.values()]
        bars = left.bar(places, heights, 0.28, color=color, label=label)
        left.bar_label(bars, fmt="%.0f", fontsize=8)
    left.set_ylim(0, 1.45 * left.get_ylim()[1])
    left.set_xticks(range(len(peaks)), [NAMES[model] for model in peaks])
    left.set_ylabel("MiB beside the weights")
    left.set_title("Memory of one run with the largest input")
    left.legend(fontsize=8)

    packings = details["native"]["packings"]
    heights = [found["over_bound"] for found in packings.values()]
    right.plot(range(len(packings)), heights, "o", color=OURS, markersize=4)
    for place, height in enumerate(heights):
        if height > 1.0005:
            right.annotate(f"{height:.3f}", (place, height + 0.003), ha="center", fontsize=7)
    right.axhline(1.02, color=NATIVE, linewidth=0.8, linestyle="--", label="target: 1.02")
    right.set_xticks(range(len(packings)), list(packings), rotation=90, fontsize=7)
    right.set_ylim(0.99, max(1.1, 1.02 * max(heights)))
    right.set_ylabel("arena / live-range bound")
    right.set_title("Packings")
    right.legend(fontsize=8)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    return file


def figures_table(results: dict[str, Any]) -> str:
    """Returns the rows of the table of docs/reference/pipelines.md."""
    pipeline = results["details"]["native"]["pipeline"]
    ratios = results["export_peak_ratio"]
    rows = {
        "weight_crossings": f"{results['weight_crossings']:g}",
        "colocated_transfers": f"{results['colocated_transfers']}",
        "stream_peak_over_window": f"{results['stream_peak_over_window']:.3f}",
        "stream_read_over_file": f"{results['stream_read_over_file']:.4f}",
        "pipeline_throughput": f"{results['pipeline_throughput']:.3f}, quotas {pipeline['quotas']}",
        "spin_states": f"{results['spin_states']:,}",
        "spin_errors": f"{results['spin_errors']}",
        "plan_over_bound": f"{results['plan_over_bound']:.4f} of {results['plan_instances']}",
        "plan_seconds": f"{results['plan_seconds']:.2f}",
        "view_hit_ns": f"{results['view_hit_ns']:.0f}",
        "view_hits": f"{results['view_hits']:.4%}",
        "export_peak_ratio": ", ".join(f"{NAMES[m]} {ratio:.3f}" for m, ratio in ratios.items()),
        "export_different": f"{results['export_different']}",
    }
    return "\n".join(f"| `{key}` | {value} |" for key, value in rows.items())


def main() -> None:
    given = [Path(argument) for argument in sys.argv[1:]]
    results = given[0] if given else ROOT / "build" / "bench" / "pipelines.json"
    file = given[1] if len(given) > 1 else ROOT / "docs" / "reference" / "pipelines.svg"
    figures = json.loads(results.read_text())
    print(draw_pipelines(figures, file))
    print(figures_table(figures))


if __name__ == "__main__":
    main()
