"""For all Python tests: the marks `slow`, `all` and `fresh_start`, a time limit, and a workaround
for machines that announce AMX and refuse it.

On some virtual machines, every product of bfloat16 matrices in torch's own CPU kernels ends in
SIGILL, with or without uvmalloc. The simulated device runs the same kernels.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left out by scripts/test --fast")
    config.addinivalue_line("markers", "all: run by scripts/test --all alone")
    config.addinivalue_line("markers", "fresh_start: its programs import torch themselves")


MakeOnce = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Returns a function that fills a folder of that name once for all processes of the test run,
    and returns the folder. What it holds must not be changed.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all workers

    def folder_of(name: str, fill: Callable[[Path], None]) -> Path:
        folder, done = base / name, base / f"{name}.done"
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return folder_of


_PRODUCT = "import torch; ones = torch.ones(64, 64, dtype=torch.bfloat16); ones @ ones"
_CPU = Path("/proc/cpuinfo")


def _amx_is_refused() -> bool:
    if not _CPU.is_file() or "amx_bf16" not in _CPU.read_text():
        return False
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ended = subprocess.run([sys.executable, "-c", _PRODUCT], env=plain, capture_output=True)
    return ended.returncode == -signal.SIGILL


# Programs in the background often start with signals ignored. Programs under test must not.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

_MOST_SECONDS = 600  # for one test


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    """Fails a test that hangs, so that the other tests run."""

    def fail(*_: object) -> None:
        pytest.fail(f"still running after {_MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(_MOST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


if "ONEDNN_MAX_CPU_ISA" not in os.environ and _amx_is_refused():
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"  # for this process and those it starts
