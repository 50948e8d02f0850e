"""Programs that use more memory than the device has, and know nothing of uvmalloc.

Their kernels and graphs tell the plan which memory they use, so a learned step has no faults.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from uvmalloc._cli.environment import Machine, without_uvmalloc
from uvmalloc._cli.report import main_report, read_report
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import build_with_nvcc, environment

MIB = 1 << 20
SMALL = Machine(machine="h100-pcie5", capacity_bytes=64 * MIB)
AMPLE = replace(SMALL, capacity_bytes=1024 * MIB)
# Blocks of 2 MiB. SMALL has room for 31 blocks.
BLOCKS = 40
FEW, MANY = 10, 20
# A part of a graph uses up to an eighth of the device, here four blocks. Neighbours share a block.
PARTS = 14

LAUNCHES = ("launch", "symbol", "views", "driver")
GRAPHS = ("graph", "child", "replace", "update", "set")
# One graph that needs more than SMALL has: it is launched in parts.
DIVIDED = "one-graph"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Run:
    stdout: str
    stderr: str
    faults: int
    nanoseconds: int  # virtual time
    planned_kernels: int


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_with_nvcc("oversubscribed", tmp_path_factory.mktemp("oversubscribed"))


def run(
    program: Path, folder: Path, mode: str, steps: int, policy: str | None, machine: Machine = SMALL
) -> Run:
    """Runs the program, without uvmalloc if there is no policy."""
    folder.mkdir(parents=True)
    kernels = find_libraries().folder / "tests" / "libcpu_kernels.so"
    variables = {"UVMSIM_KERNELS": str(kernels), "UVMALLOC_POLICY": policy or "off"}
    variables |= {"UVMALLOC_THRASHING": "off"}
    found = environment(folder, variables, machine)
    if policy is None:
        found = without_uvmalloc(found)
    done = subprocess.run(
        [program, mode, str(BLOCKS), str(steps)],
        env=found,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(folder / "sim.json")
    counters = report["counters"]
    assert counters["unimplemented_calls"] == 0
    plan = (main_report(folder, -1) or {}).get("live_plan", {})
    return Run(
        done.stdout,
        done.stderr,
        counters["faults_device"],
        report["virtual_ns"],
        plan.get("kernels", 0),
    )


@pytest.mark.parametrize("mode", (*LAUNCHES, *GRAPHS, DIVIDED))
def test_a_learned_step_has_no_faults(built: Path, tmp_path: Path, mode: str) -> None:
    few, many, by_driver = (
        run(built, tmp_path / f"{policy}-{steps}", mode, steps, policy)
        for policy, steps in (("auto", FEW), ("auto", MANY), ("driver", MANY))
    )
    ample = run(built, tmp_path / "ample", mode, MANY, None, AMPLE)
    assert many.stdout == by_driver.stdout == ample.stdout
    assert (many.stderr, by_driver.stderr) == ("", "")
    assert by_driver.faults > MANY * BLOCKS
    assert many.faults == few.faults
    assert many.faults < BLOCKS
    assert many.nanoseconds * 4 < by_driver.nanoseconds
    launches = {DIVIDED: PARTS}.get(mode, BLOCKS if mode in LAUNCHES else BLOCKS // 8)
    assert many.planned_kernels == MANY * launches, "each once; kernels without addresses never"


def test_a_changed_graph_is_launched_whole(built: Path, tmp_path: Path) -> None:
    short = run(built, tmp_path / "short", "one-graph-set", FEW, "auto")
    ample = run(built, tmp_path / "ample", "one-graph-set", FEW, None, AMPLE)
    assert short.stdout == ample.stdout
    assert short.planned_kernels == FEW


def test_launches_of_a_divided_graph_do_not_overlap(built: Path, tmp_path: Path) -> None:
    both = run(built, tmp_path / "both", "one-graph-streams", FEW, "lru")
    one = run(built, tmp_path / "one", "one-graph", 2 * FEW, "lru")
    assert both.planned_kernels == one.planned_kernels == 2 * FEW * PARTS
    assert both.nanoseconds > 0.9 * one.nanoseconds


@pytest.mark.parametrize("mode", ["launch", "graph"])
def test_nothing_is_noted_while_all_fits(built: Path, tmp_path: Path, mode: str) -> None:
    assert run(built, tmp_path / "ample", mode, FEW, "auto", AMPLE).planned_kernels == 0


def test_a_driver_that_tells_no_parameters_leaves_the_moves_to_faults(
    built: Path, tmp_path: Path
) -> None:
    old = replace(SMALL, driver_version="12.2")
    found = run(built, tmp_path / "old", "launch", FEW, "auto", old)
    assert found.stdout == run(built, tmp_path / "ample", "launch", FEW, None, AMPLE).stdout
    assert found.planned_kernels == 0
    lines = [line for line in found.stderr.splitlines() if "parameters of kernels" in line]
    assert len(lines) == 1, found.stderr
