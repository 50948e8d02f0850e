"""The pictures of docs/first-run.md, on the simulated device.

    build/venv/bin/python -m bench.first_run [FOLDER]       default: docs/pictures

first-run.svg has the time of a step of examples/first_run.py in the four steps of the tutorial.
`uvmalloc plan` draws first-run-plan.png. The figures are printed too. It takes a minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.charts import NATIVE, OURS, plt

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "uvmalloc"]
PROGRAM = [sys.executable, str(ROOT / "examples" / "first_run.py")]
MACHINE = ("--machine", "h100-pcie5")
FEW, MANY = 12, 24  # a step's time is a difference, so the steps that uvmalloc learns from are out
STEPS = {
    "300 MiB:\nit fits": ("300MiB", ()),
    "150 MiB: it spills,\nthe driver moves pages": ("150MiB", ("--policy", "driver")),
    "150 MiB: it spills,\nuvmalloc plans": ("150MiB", ()),
    "150 MiB:\nfused optimizer": ("150MiB", ("--fused",)),
}


def virtual_ms(capacity: str, options: tuple[str, ...], steps: int, folder: Path) -> float:
    report = folder / "report.json"
    ours = [option for option in options if option != "--fused"]
    command = [*COMMAND, "sim", *MACHINE, "--capacity", capacity, "--no-report", *ours]
    program = [*PROGRAM, "--steps", str(steps), *(["--fused"] if "--fused" in options else [])]
    subprocess.run(
        [*command, "--report", str(report), "--", *program], check=True, stdout=subprocess.DEVNULL
    )
    found = json.loads(report.read_text(encoding="utf-8"))
    return float(found["simulator"]["virtual_ns"]) / 1e6


def measure(folder: Path) -> dict[str, float]:
    """Returns the time of a step in each case, in ms."""
    return {
        name: (virtual_ms(*case, MANY, folder) - virtual_ms(*case, FEW, folder)) / (MANY - FEW)
        for name, case in STEPS.items()
    }


def draw(step_ms: dict[str, float], file: Path) -> None:
    """Draws the times. Equal figures give equal files. Text stays text in the SVG."""
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "uvmalloc"}):
        figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
        colors = [NATIVE if "driver" in name else OURS for name in step_ms]
        bars = axes.barh(list(step_ms), list(step_ms.values()), 0.6, color=colors)
        axes.bar_label(bars, fmt=" %.1f ms", fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("time of a training step, ms (virtual, H100 with PCIe 5)", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(file, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def draw_plan(file: Path) -> None:
    plan = [*COMMAND, "plan", *MACHINE, "--png", str(file), "--", *PROGRAM]
    subprocess.run(plan, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs" / "pictures")
    pictures: Path = parser.parse_args().folder
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        step_ms = measure(Path(folder))
        print(json.dumps(step_ms, indent=1))
        draw(step_ms, pictures / "first-run.svg")
        draw_plan(pictures / "first-run-plan.png")


if __name__ == "__main__":
    main()
