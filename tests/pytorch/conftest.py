"""Programs on a simulated device, for the tests of this folder.

`simulate` runs a program text or file through the same environment that `uvmalloc sim` makes:

    def test_sum(simulate):
        run = simulate("import torch; print(torch.ones(3).cuda().sum().item())")
        run.check()
        assert run.stdout == "3.0\\n"
        assert run.report["moves"]["total"] == 1
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from uvmalloc._cli.environment import (
    Machine,
    on_simulated_device,
    with_uvmalloc,
    without_settings,
    without_uvmalloc,
)
from uvmalloc._cli.report import main_report, read_report
from uvmalloc.libraries import Libraries, find_libraries
from uvmalloc.sizes import parse_size

from tests.pytorch.fork_server import READ_LATE, Ended, ForkServer

ROOT = Path(__file__).resolve().parents[2]

# The minor version of the torch that the programs import: 11 of 2.11.
TORCH_MINOR = int(importlib.metadata.version("torch").split(".")[1])


# Begins programs that check which moves have shared and which have copied.
MOVES_PRELUDE = """
import json, torch
def report():
    return json.loads(torch.ops.uvmalloc.report())
def copied():
    return {k: v["count"] for k, v in report()["copies_by_moves"]["by_reason"].items()}
torch.cuda.init()
"""

# Begins programs that check which errors name what.
REFUSED_PRELUDE = """
def refused(kind, text, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert text in str(error), error
    else:
        raise SystemExit(f'{arguments} {named} were accepted')
"""


@dataclass(frozen=True)
class SimulatedRun:
    """A program that has ended."""

    returncode: int
    stdout: str
    stderr: str
    report: dict[str, Any]  # of libuvmalloc_preload.so; empty if it wrote none
    sim: dict[str, Any]  # the simulator's counters; empty if it wrote none

    def check(self) -> SimulatedRun:
        """Fails the test if the program failed."""
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self


class Simulate(Protocol):
    def __call__(
        self,
        program: str | Path,
        *arguments: str,
        native: bool = False,
        devices: int = 1,
        capacity: str | None = None,
        policy: str | None = None,
        budget: str | None = None,
        driver_version: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 180,
    ) -> SimulatedRun: ...


def fails_in_one_line_on_a_full_disk(
    environment: Mapping[str, str], arguments: Sequence[str | Path]
) -> None:
    """Runs `uvmalloc` with these arguments and an output that cannot be written."""
    with Path("/dev/full").open("w") as full:
        finished = subprocess.run(
            [sys.executable, "-m", "uvmalloc", *arguments],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    said = "uvmalloc: error: cannot write the output: No space left on device\n"
    assert (finished.returncode, finished.stderr) == (1, said)


class Checked(Protocol):
    def __call__(self, program: str, *arguments: str, **options: Any) -> SimulatedRun: ...


@pytest.fixture
def checked(simulate: Simulate, request: pytest.FixtureRequest) -> Checked:
    """Returns a function that runs the module's PRELUDE and then `program`, which must succeed."""
    prelude = getattr(request.module, "PRELUDE", "")

    def run(program: str, *arguments: str, **options: Any) -> SimulatedRun:
        return simulate(prelude + program, *arguments, **options).check()

    return run


@pytest.fixture
def same_output(checked: Checked) -> Checked:
    """Returns a function that runs a program with torch's allocators and with uvmalloc. Both
    must print the same. The function returns the run with uvmalloc."""

    def run(program: str, *arguments: str, **options: Any) -> SimulatedRun:
        native = checked(program, *arguments, native=True, **options)
        ours = checked(program, *arguments, **options)
        assert ours.stdout == native.stdout
        assert ours.stdout.strip(), "a test that prints nothing compares nothing"
        return ours

    return run


@pytest.fixture(scope="session")
def libraries() -> Libraries:
    return find_libraries()


@pytest.fixture
def other_build() -> Iterator[Path]:
    """An empty folder of this checkout, which UVMALLOC_LIB_DIR may name."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        yield Path(folder)


@pytest.fixture
def lonely_library(libraries: Libraries, other_build: Path) -> Path:
    """Returns the library in a folder without a plugin for the installed torch."""
    lonely = other_build / "libuvmalloc_preload.so"
    shutil.copy(libraries.require_uvmalloc(), lonely)
    return lonely


@pytest.fixture
def clean_environment() -> dict[str, str]:
    """Returns this process's environment without variables that set uvmalloc, the simulator,
    torch or the loader. A developer's settings must not reach the programs under test."""
    kept = without_settings(os.environ, "CUDA_", "LD_")
    chosen = os.environ.get("UVMALLOC_LIB_DIR")
    return {**kept, "UVMALLOC_LIB_DIR": chosen} if chosen else kept


class ForkServers:
    """The fork servers of a session, each made at its first use."""

    def __init__(self, folder: Path) -> None:
        self.report_dir = folder
        self._servers: dict[bool, ForkServer] = {}

    def server(self, native: bool, environment: Mapping[str, str]) -> ForkServer:
        if native not in self._servers:
            self._servers[native] = ForkServer(environment)
        return self._servers[native]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


@pytest.fixture(scope="session")
def fork_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServers]:
    servers = ForkServers(tmp_path_factory.mktemp("reports"))
    yield servers
    servers.close()


@pytest.fixture
def folder_on_disk() -> Iterator[Path]:
    """A folder on a disk, in which nothing may be left; the temporary one may be in memory."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as made:
        yield Path(made)
        assert list(Path(made).iterdir()) == []


@pytest.fixture
def simulate(
    libraries: Libraries,
    clean_environment: dict[str, str],
    fork_servers: ForkServers,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Simulate:
    """Returns a function that runs Python (a program text, or a file and its arguments) on a
    simulated device.

    `native` leaves uvmalloc out; `environment` is added last, over everything else. A program is
    forked from a server that has imported torch (fork_server.py), unless the program sets a
    variable that libraries read when they are loaded, or its test is marked `fresh_start`.
    """
    is_fresh = request.node.get_closest_marker("fresh_start") is not None

    def run(
        program: str | Path,
        *arguments: str,
        native: bool = False,
        devices: int = 1,
        capacity: str | None = None,
        policy: str | None = None,
        budget: str | None = None,
        driver_version: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 180,
    ) -> SimulatedRun:
        folder = tmp_path_factory.mktemp("reports")
        counters = folder / "sim.json"
        machine = Machine(
            devices, parse_size(capacity) if capacity else None, driver_version=driver_version
        )
        settings = {"UVMALLOC_POLICY": policy, "UVMALLOC_BUDGET": budget}
        settings = {name: value for name, value in settings.items() if value is not None}
        own = environment or {}
        is_late = own.keys() <= READ_LATE and driver_version is None
        can_fork = not is_fresh and not settings and is_late
        report_dir = fork_servers.report_dir if can_fork else folder
        variables = on_simulated_device(clean_environment, libraries, machine, counters)
        if native:
            variables = without_uvmalloc(variables)
        else:
            variables = with_uvmalloc(variables, libraries, settings, report_dir)
        if can_fork:
            server = fork_servers.server(native, variables)
            variables.update(own)
            try:
                ended = server.run(program, arguments, variables, timeout_seconds)
            except TimeoutError as error:
                pytest.fail(f"still running after {timeout_seconds} s\n{error}")
            for report in report_dir.glob("report.*"):
                report.rename(folder / report.name)
        else:
            start = [str(program)] if isinstance(program, Path) else ["-c", program]
            ended = _run(
                [sys.executable, *start, *arguments], {**variables, **own}, timeout_seconds
            )
        return SimulatedRun(
            ended.returncode,
            ended.stdout,
            ended.stderr,
            main_report(folder, ended.pid) or {},
            read_report(counters)["counters"] if counters.is_file() else {},
        )

    return run


def _run(command: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Ended:
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its forked children too
            stdout, stderr = process.communicate()
            pytest.fail(f"still running after {timeout_seconds} s\n{stdout}\n{stderr}")
    return Ended(process.pid, process.returncode, stdout, stderr)
