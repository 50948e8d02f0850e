"""Runs programs without torch on simulated devices, with allocation calls that uvmalloc
serves.

The simulated driver counts the allocations that reached it, and the report counts those that
were served.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from uvmalloc._cli.environment import (
    Machine,
    on_simulated_device,
    with_uvmalloc,
)
from uvmalloc._cli.report import main_report, read_report
from uvmalloc.libraries import find_libraries

ROOT = Path(__file__).resolve().parents[2]
STRAY_PREFIXES = ("UVMALLOC_", "UVMSIM_", "PYTORCH_", "CUDA_", "HIP_", "HSA_", "LD_")


@dataclass(frozen=True)
class Run:
    stdout: str
    stderr: str
    served: int  # allocations of device and pinned memory
    reached: int  # device and pinned allocations that the simulated driver made
    report: dict[str, Any]


Program = Callable[..., Run]

# How programs in Python reach a runtime: by dlsym on a handle.
CTYPES = """
import ctypes, os, sys
size, pointer, byref = ctypes.c_size_t, ctypes.c_void_p, ctypes.byref
MIB = 1 << 20
def allocate(function, *arguments):
    out = pointer()
    return function(byref(out), *arguments), out
"""


def environment(folder: Path, variables: Mapping[str, str], machine: Machine) -> dict[str, str]:
    libraries = find_libraries()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(STRAY_PREFIXES)}
    made = on_simulated_device(clean, libraries, machine, folder / "sim.json")
    made = with_uvmalloc(made, libraries, {}, folder)
    del made["PYTORCH_ENABLE_UNIFIED_MEMORY"]
    return {**made, "UVMALLOC_CUDA": "1", "UVMALLOC_STARTUP_LINE": "0", **variables}


def run_on(machine: Machine, folder: Path) -> Program:
    """Returns a function that runs a command on that machine; its reports go to the folder."""

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


def in_python(program: Program, prelude: str) -> Program:
    """Returns a function that runs text in Python, after CTYPES and the prelude."""

    def run(text: str, **variables: str) -> Run:
        return program(sys.executable, "-c", CTYPES + prelude + text, **variables)

    return run


def build_with_nvcc(name: str, folder: Path, runtime: str = "shared") -> Path:
    """Builds programs/NAME.cu with nvcc and returns the program. Skips the test without nvcc."""
    nvcc = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("no nvcc: a CUDA toolkit has it, which a machine without a GPU need not have")
    source = ROOT / "tests" / "preload" / "programs" / f"{name}.cu"
    program = folder / name
    command = [nvcc, "-cudart", runtime, "-std=c++17", "-o", program, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return program


TWINS = {"ONE": [""], "OWN": [""], "PTSZ": ["", "_ptsz"], "SPT": ["", "_spt"]}


def listed_calls(beginning: str = "", interface: str = "[A-Z_]+") -> list[str]:
    """Returns the functions of an interface, such as CUDA_RUNTIME, that begin with `beginning`."""
    table = (ROOT / "preload" / "calls.def").read_text()
    rows = re.findall(rf"^{interface}\((\w+), \d+, ([A-Z]+), \w+\)$", table, re.MULTILINE)
    names = [name + twin for name, forms in rows for twin in TWINS[forms]]
    return [name for name in names if name.startswith(beginning)]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return run_on(Machine(), tmp_path)


@pytest.fixture
def hip_program(tmp_path: Path) -> Program:
    return run_on(Machine(hip=True), tmp_path)
