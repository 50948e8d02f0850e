"""`uvmalloc top`: what it shows of programs that run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from uvmalloc.top import Moment, rate_table

PROGRAM = """
import os, sys, torch
kept = torch.ones(16 << 20, device='cuda')
torch.cuda.synchronize()  # the kernel has written its pages
print(os.getpid(), flush=True)  # now it may be looked at
for line in sys.stdin:
    kept.add_(1)
"""


@pytest.fixture
def running(clean_environment) -> Iterator[str]:
    """The number of a process on the simulated device, under `uvmalloc sim`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "uvmalloc", "sim", "--", sys.executable, "-c",
         PROGRAM],
        env=clean_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    yield process.stdout.readline().strip()
    process.stdin.close()
    process.wait(timeout=60)


def top(environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "uvmalloc", "top", *arguments],
        env={**environment, "COLUMNS": "120"}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_a_running_program_shows_its_memory_and_the_machines_counters(running, clean_environment):
    # Without a number it would show all processes, other tests' too.
    finished = top(clean_environment, running, "--count", "2", "--interval", "0.2")
    assert finished.returncode == 0, finished.stderr
    rows = [line.split() for line in finished.stdout.splitlines() if line.strip()]
    device = next(row for row in rows if row[0] == "device")
    assert "64" in " ".join(device)  # MiB that the tensor takes
    assert any(row[0] == "kernels" for row in rows)


def test_a_process_that_is_none_is_refused_in_one_line(clean_environment):
    finished = top(clean_environment, str(os.getpid()))
    assert finished.returncode == 1
    said = f"process {os.getpid()} under `uvmalloc run` or `uvmalloc sim` is not running"
    assert said in finished.stderr
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--interval", "0"], "--interval is '0'; accepted: seconds from 0.1 to 3600"),
        (["--count", "none"], "--count is 'none'; accepted: a whole number from 1"),
        (["me"], "PID is 'me'; accepted: the number of a process"),
    ],
)
def test_options_that_mean_nothing_are_refused(clean_environment, arguments, said):
    finished = top(clean_environment, *arguments)
    assert finished.returncode == 2
    assert said in finished.stderr


def test_rates_are_what_has_happened_between_two_pictures():
    def moment(at: float, kernels: int, moved: int) -> Moment:
        counters = {"kernels": kernels, "migrated_bytes_to_device": moved}
        return Moment(at, {"simulator": {"counters": counters}})

    table = rate_table(moment(12.0, 500, 6 << 20), moment(10.0, 100, 2 << 20))
    names, rates, totals = (list(column.cells) for column in table.columns)
    row = names.index("kernels")
    assert (rates[row], totals[row]) == ("200", "500")
    row = names.index("to devices")
    assert (rates[row], totals[row]) == ("2 MiB", "6 MiB")


def test_moves_are_counted_without_their_bytes_and_their_directions():
    moves = {"total": 5, "host_to_device": 3, "device_to_host": 2, "bytes": 20 << 20}
    table = rate_table(Moment(1.0, {"moves": moves}), None)
    names, _, totals = (list(column.cells) for column in table.columns)
    assert totals[names.index("moves without a copy")] == "5"
