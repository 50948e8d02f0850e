"""Programs that know nothing of uvmalloc, with and without the preload.

The programs run unmodified on the simulated device, and print the same with and without
uvmalloc. With uvmalloc, a step makes no allocation in the driver once the cache is warm.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine, without_uvmalloc
from uvmalloc._cli.report import read_report
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import build_with_nvcc, environment

PROGRAMS = Path(__file__).parent / "programs"
# Numbers of steps. Freed blocks wait for the device, and are used again once they make up 256 MiB,
# so the cache grows until then.
FEW, MANY = 200, 300


@dataclass(frozen=True)
class Run:
    stdout: str
    stderr: str
    allocations: int  # by the driver, of every kind


def run(folder: Path, command: list[str | Path], *, preloaded: bool, kernels: Path | None) -> Run:
    folder.mkdir()
    variables = {"UVMSIM_KERNELS": str(kernels)} if kernels else {}
    found = environment(folder, variables, Machine())
    if not preloaded:
        found = without_uvmalloc(found)
    done = subprocess.run(command, env=found, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    counters = read_report(folder / "sim.json")["counters"]
    assert counters["unimplemented_calls"] == 0
    kinds = ("managed_allocations", "device_allocations", "pinned_allocations")
    return Run(done.stdout, done.stderr, sum(counters[kind] for kind in kinds))


def assert_same_and_served(
    folder: Path, command: list[str | Path], allocations_per_step: int, kernels: Path | None = None
) -> None:
    """Compares output and allocations. The command gets its number of steps as the last
    argument, and prints a line for each step."""
    native, served = (
        [
            run(
                folder / f"{name}-{steps}",
                [*command, str(steps)],
                preloaded=name == "served",
                kernels=kernels,
            )
            for steps in (FEW, MANY)
        ]
        for name in ("native", "served")
    )
    for by_itself, with_us in zip(native, served, strict=True):
        assert with_us.stdout == by_itself.stdout
        assert (with_us.stderr, by_itself.stderr) == ("", "")
    assert native[1].stdout.count("\n") >= MANY
    more_steps = MANY - FEW
    assert native[1].allocations - native[0].allocations == more_steps * allocations_per_step
    assert served[1].allocations - served[0].allocations == 0


# ---- Python


# cuda.bindings comes with torch. Its runtime module contains CUDA's static runtime and is stripped.
@pytest.mark.parametrize(
    ("program", "allocations_per_step"),
    [("bindings_steps.py", 5), ("bindings_runtime_steps.py", 4)],
)
def test_cuda_bindings(tmp_path: Path, program: str, allocations_per_step: int) -> None:
    assert_same_and_served(tmp_path, [sys.executable, PROGRAMS / program], allocations_per_step)


@pytest.mark.slow
def test_numba(tmp_path: Path) -> None:
    """numba makes its driver calls through cuda.bindings."""
    python = os.environ.get("UVM_PROGRAMS_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("numba") is None:
        pytest.skip("numba-cuda is not installed; scripts/test_programs installs it and runs this")
    program = PROGRAMS / "numba_steps.py"
    assert_same_and_served(tmp_path, [python, program], allocations_per_step=4)


# ---- programs built by nvcc


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["shared", "static"])
@pytest.mark.parametrize(
    ("sample", "allocations_per_step"), [("streams_and_pools", 6), ("pitched_and_pinned", 4)]
)
def test_a_sample_that_nvcc_has_built(
    tmp_path: Path, sample: str, allocations_per_step: int, runtime: str
) -> None:
    program = build_with_nvcc(sample, tmp_path, runtime)
    kernels = find_libraries().folder / "tests" / "libcpu_kernels.so"
    assert_same_and_served(tmp_path, [program], allocations_per_step, kernels)
