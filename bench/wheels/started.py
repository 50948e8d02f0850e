"""Runs a program with each wheel, on the simulated device, without and with uvmalloc.

`wheels_started` counts the wheels whose program allocates and copies correctly in both runs. A
program checks its own values, and prints "right" at its end. For each other wheel, `reasons` has
the last line that says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvmalloc._cli.report import main_report

from bench.environment import clean_environment

HERE = Path(__file__).resolve().parent
MOST_SECONDS = 300
# What the program of a wheel that cannot start says, and the reason.
STATIC_RUNTIME = "contains CUDA's static runtime"
KERNEL = "cannot run on the simulated device"


@dataclass(frozen=True)
class Wheel:
    name: str
    package: str
    program: str


WHEELS = (
    Wheel("CuPy", "cupy-cuda13x", "cupy_memory.py"),
    Wheel("RMM", "rmm-cu13", "rmm_memory.py"),
    Wheel("cuda.bindings.runtime", "cuda-bindings", "bindings_memory.py"),
    Wheel("numba-cuda", "numba-cuda", "numba_memory.py"),
    Wheel("Taichi", "taichi", "taichi_memory.py"),
    Wheel("fbgemm-gpu", "fbgemm-gpu", "fbgemm_memory.py"),
    Wheel("bitsandbytes", "bitsandbytes", "bitsandbytes_memory.py"),
)


def measure(python: Path) -> dict[str, Any]:
    """Returns `wheels_started`, `wheels_tried`, and for each wheel what happened."""
    versions = _versions(python)
    wheels = {}
    for wheel in WHEELS:
        answers = {name: _run(python, wheel, name) for name in ("native", "served")}
        reasons = [each["reason"] for each in answers.values() if each["reason"] is not None]
        wheels[wheel.name] = {
            "version": versions.get(wheel.package),
            "started": not reasons,
            "reason": reasons[0] if reasons else None,
            "calls_served": answers["served"]["calls_served"],
        }
    started = sum(each["started"] for each in wheels.values())
    return {"wheels_started": started, "wheels_tried": len(wheels), "wheels": wheels}


def show(figures: dict[str, Any]) -> None:
    for name, wheel in figures["wheels"].items():
        outcome = "right" if wheel["started"] else wheel["reason"]
        print(f"{name} {wheel['version']}: {outcome}", file=sys.stderr)
    print(f"{figures['wheels_started']} of {figures['wheels_tried']} started", file=sys.stderr)


def _run(python: Path, wheel: Wheel, name: str) -> dict[str, Any]:
    """Returns the reason why the program did not end correctly, or None, and the calls that
    uvmalloc served."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        report.mkdir()
        command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report"]
        command += ["--native"] if name == "native" else []
        command += ["--", str(python), str(HERE / wheel.program)]
        environment = {**clean_environment(), "UVMALLOC_REPORT_DIR": str(report)}
        try:
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"reason": f"still running after {MOST_SECONDS} s", "calls_served": 0}
        is_right = ended.returncode == 0 and ended.stdout.splitlines()[-1:] == ["right"]
        reason = None if is_right else _reason(ended.stderr, ended.returncode)
        return {"reason": reason, "calls_served": _calls_served(report)}


def _reason(stderr: str, code: int) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for sign in (STATIC_RUNTIME, KERNEL):
        said = [line for line in lines if line.startswith("uvmsim: ") and sign in line]
        if said:
            what, _, rest = said[0].removeprefix("uvmsim: ").split(",")[0].partition(" ")
            return f"{Path(what).name} {rest}"
    return lines[-1] if lines else f"ended with exit code {code}"


def _calls_served(folder: Path) -> int:
    report = main_report(folder, -1) or {}
    calls = report.get("cuda_calls", {})
    return sum(each.get("served", 0) for each in calls.values())


def _versions(python: Path) -> dict[str, str]:
    ask = "import importlib.metadata as metadata, json\n"
    ask += "print(json.dumps([[each.metadata['Name'], each.version] for each in "
    ask += "metadata.distributions()]))"
    found = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    names = json.loads(found.stdout)
    # The environment's own packages come first.
    return {name.lower().replace("_", "-"): version for name, version in reversed(names)}
