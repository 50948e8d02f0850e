"""Programs without torch whose allocation calls libuvmalloc.so serves, on simulated devices.

The simulated driver's counters tell how many allocations reached it, and the report how many were
served.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from uvmalloc.environment import (
    AllocatorOptions,
    Machine,
    on_simulated_device,
    with_uvmalloc,
)
from uvmalloc.libraries import find_libraries
from uvmalloc.report import main_report, read_report

STRAY_PREFIXES = ("UVMALLOC_", "UVMSIM_", "PYTORCH_", "CUDA_", "HIP_", "HSA_", "LD_")


@dataclass(frozen=True)
class Run:
    stdout: str
    stderr: str
    served: int  # allocations of the device and pinned facades
    reached: int  # device and pinned allocations that the simulated driver made
    report: dict[str, Any]


Program = Callable[..., Run]


def environment(folder: Path, variables: Mapping[str, str], machine: Machine) -> dict[str, str]:
    libraries = find_libraries()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(STRAY_PREFIXES)}
    made = on_simulated_device(clean, libraries, machine, folder / "sim.json")
    made = with_uvmalloc(made, libraries, AllocatorOptions(), folder)
    del made["PYTORCH_ENABLE_UNIFIED_MEMORY"]
    return {**made, "UVMALLOC_CUDA": "1", "UVMALLOC_STARTUP_LINE": "0", **variables}


def run_on(machine: Machine, folder: Path) -> Program:
    """Runs a command on that machine; its reports go to the folder."""

    def run(*command: str | Path, **variables: str) -> Run:
        finished = subprocess.run(
            command,
            env=environment(folder, variables, machine),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        report: dict[str, Any] = main_report(folder, -1) or {}
        counters = read_report(folder / "sim.json")["counters"]
        facades = report.get("facades", {})
        return Run(
            finished.stdout,
            finished.stderr,
            sum(facades.get(name, {}).get("allocations", 0) for name in ("device", "pinned")),
            counters["device_allocations"] + counters["pinned_allocations"],
            report,
        )

    return run


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return run_on(Machine(), tmp_path)


@pytest.fixture
def hip_program(tmp_path: Path) -> Program:
    return run_on(Machine(hip=True), tmp_path)
