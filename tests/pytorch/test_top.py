"""`uvmalloc top`: what it shows of running programs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from uvmalloc._cli.credentials import Answer, Credentials, credentials_of
from uvmalloc._cli.files import MOST_BYTES
from uvmalloc._cli.metrics import metrics
from uvmalloc._cli.top import (
    Moment,
    Moments,
    folders_of,
    has_ended,
    picture,
    rate_table,
    with_descendants,
)
from uvmalloc.errors import CommandError

from tests.pytorch.conftest import ROOT

PROGRAM = """
import os, sys, torch, uvmalloc
kept = torch.ones(16 << 20, device='cuda')
uvmalloc.group_of(kept, name='kept').sleep()
uvmalloc.group('kept').wake()
torch.cuda.synchronize()  # the kernel has written its pages
print(os.getpid(), flush=True)  # now it may be looked at
for line in sys.stdin:
    kept.add_(1)
"""


@pytest.fixture
def running(clean_environment) -> Iterator[str]:
    """Runs a process on the simulated device, under `uvmalloc sim`, and gives its number."""
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
    # Without a number, the command would show all processes, including those of other tests.
    finished = top(clean_environment, running, "--count", "2", "--interval", "0.2")
    assert finished.returncode == 0, finished.stderr
    rows = [line.split() for line in finished.stdout.splitlines() if line.strip()]
    device = next(row for row in rows if row[0] == "device")
    assert "64" in " ".join(device)  # MiB that the tensor takes
    assert any(row[0] == "kernels" for row in rows)
    assert ["kept", "awake", "64", "MiB", "64", "MiB", "0", "B", "1", "1"] in rows


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Returns a function that reads OpenMetrics with the parser of Prometheus's Python client."""
    # scripts/setup has put the parser beside the other packages.
    monkeypatch.syspath_prepend((ROOT / "build" / "checkers").read_text().strip())
    from prometheus_client.openmetrics import parser

    return lambda text: {
        family.name: family for family in parser.text_string_to_metric_families(text)
    }


def test_metrics_of_a_running_program_are_read_by_prometheus(running, clean_environment, families):
    finished = top(clean_environment, running, "--metrics")
    assert (finished.returncode, finished.stderr) == (0, "")
    found = families(finished.stdout)
    live = found["uvmalloc_live_bytes"]
    assert (live.type, live.unit) == ("gauge", "bytes")
    values = {sample.labels["kind"]: sample.value for sample in live.samples}
    assert values.keys() == {"host", "pinned", "device"}
    assert values["device"] == 64 << 20
    allocated = found["uvmalloc_allocated_bytes"]
    assert (allocated.type, allocated.unit) == ("counter", "bytes")
    assert {sample.name for sample in allocated.samples} == {"uvmalloc_allocated_bytes_total"}
    assert {s.labels["pid"] for family in found.values() for s in family.samples} == {running}
    assert found["uvmalloc_budget_bytes"].samples[0].value > 64 << 20
    assert found["uvmalloc_out_of_memory"].samples[0].value == 0


def test_metrics_of_several_processes_and_damaged_figures_are_well_formed(families) -> None:
    odd = {"pid": 8, "rank": 'a"b\\c\n', "moves": {"bytes": "many"}, "facades": [1],
           "devices": 3, "groups": [{}, {}], "out_of_memory": True}  # fmt: skip
    text = metrics([{"pid": 7, "budget_bytes": 1 << 40, "devices": [{"believed_bytes": 5}]}, odd])
    found = families(text)
    assert found.keys() == {"uvmalloc_budget_bytes", "uvmalloc_device_bytes", "uvmalloc_groups"}
    [groups] = found["uvmalloc_groups"].samples
    assert (groups.labels, groups.value) == ({"pid": "8", "rank": 'a"b\\c\n'}, 2)
    assert found["uvmalloc_device_bytes"].samples[0].labels == {"pid": "7", "device": "0"}
    assert families(metrics([])) == {}


def test_metrics_are_one_reading(clean_environment) -> None:
    finished = top(clean_environment, "--metrics", "--count", "3")
    assert finished.returncode == 2
    assert "--count is '3'; accepted: nothing with --metrics" in finished.stderr
    # Not this process: another test may have started programs from it.
    with subprocess.Popen(["sleep", "60"], env=clean_environment) as other:
        finished = top(clean_environment, str(other.pid), "--metrics")
        other.kill()
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "does not run under `uvmalloc run`" in finished.stderr


def test_a_launcher_stands_for_its_program_and_readings_follow_each_other(
    clean_environment,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "uvmalloc", "sim", "--", sys.executable, "-c",
         "import sys\nsys.stdin.readline()\n" + PROGRAM],
        env=clean_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        assert launcher.stdin is not None
        while not (folders := folders_of_children(launcher.pid)):
            assert launcher.poll() is None
            time.sleep(0.05)
        early = top(clean_environment, str(launcher.pid), "--count", "1")
        assert early.stdout == "no program has used its device yet\n", (folders, early.stderr)
        print(file=launcher.stdin, flush=True)
        number = launcher.stdout.readline().strip()
        seen = top(clean_environment, str(launcher.pid), "--count", "3", "--interval", "0.1")
        assert seen.stdout.count(f"{number}  ") == 3, "one picture for each reading"
        launcher.stdin.close()
        assert launcher.wait(timeout=60) == 0


def folders_of_children(pid: int) -> list[Path]:
    return folders_of(with_descendants(pid)[1:])


NESTED = b"[" * 4000
GONE = 4_000_000  # above the largest process ID, so no such process runs
OF_ANOTHER_VERSION = b"uvmalloc-fig-1".ljust(16, b"\0") + b"99.0".ljust(16, b"\0")
BAD_FILES: list[Callable[[Path], object]] = [
    os.mkfifo,
    Path.mkdir,
    Path.touch,
    lambda file: file.symlink_to("/etc/passwd"),
    lambda file: (file.touch(), os.truncate(file, MOST_BYTES + 1)),
    lambda file: file.write_bytes(OF_ANOTHER_VERSION.ljust(1 << 20, b"\0")),
    lambda file: file.write_bytes(NESTED),
    lambda file: file.write_bytes(b"[1]"),
]
BAD_COUNTERS: list[Callable[[Path], object]] = [
    lambda file: file.write_bytes(b'{"pid": "\\u0000", "counters": {"a": 0}}'.ljust(4096 + 8)),
    lambda file: file.write_bytes(b'{"pid": 1, "counters": [0]}'.ljust(4096 + 8)),
    lambda file: file.write_bytes(b'{"pid": 1, "counters": {"a": "b"}}'.ljust(4096 + 8)),
    lambda file: file.write_bytes(b'{"pid": 1, "counters": {}, "unimplemented": 1}'),
]


@pytest.mark.parametrize(
    ("name", "makers"),
    [
        ("report.{}.figures", BAD_FILES),
        ("sim.{}.json", BAD_FILES + BAD_COUNTERS),
        ("sim.{}.json.counters", BAD_FILES + BAD_COUNTERS),
    ],
)
def test_each_bad_file_costs_one_line_and_no_more(running, clean_environment, name, makers):
    (folder,) = folders_of([int(running)])
    bad = [folder / name.format(GONE + number) for number in range(len(makers))]
    for make, file in zip(makers, bad, strict=True):
        make(file)
    finished = top(clean_environment, running, "--count", "1")
    assert finished.returncode == 0, finished.stderr
    assert any(line.split()[:1] == ["device"] for line in finished.stdout.splitlines())
    assert finished.stdout.count("left out: ") == len(bad), finished.stdout
    said = "".join(finished.stdout.split())
    assert [file.name for file in bad if file.name not in said] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at other users' processes")
def test_root_reads_with_the_rights_of_the_process(clean_environment):
    nobody = 65534
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as at_the_end:
        folder = Path(name, "figures")
        folder.mkdir(0o700)
        Path(name).chmod(0o755)
        process = subprocess.Popen(
            ["sleep", "1000"], user=nobody, group=nobody, extra_groups=[],
            env={"UVMALLOC_REPORT_DIR": str(folder)},
        )  # fmt: skip
        at_the_end.callback(process.wait)
        at_the_end.callback(process.kill)
        (folder / f"report.{process.pid}.figures").write_text("not for this user")
        credentials = credentials_of(process.pid)
        assert credentials == Credentials(nobody, nobody, ())
        assert Answer(credentials, os.getresuid).read(time.monotonic() + 60) == [nobody] * 3
        hidden = top(clean_environment, str(process.pid))
        assert (hidden.returncode, "left out" in hidden.stderr) == (1, False)
        folder.chmod(0o755)
        seen = top(clean_environment, str(process.pid))
        assert (seen.returncode, "left out" in seen.stderr) == (1, True)


def test_a_reader_that_hangs_or_dies_is_given_up():
    own = Credentials(os.geteuid(), os.getegid(), ())
    hanging = Answer(own, signal.pause)
    with pytest.raises(CommandError, match="takes too long"):
        hanging.read(time.monotonic() + 0.1)
    dying = Answer(own, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(CommandError, match="could not be read"):
        dying.read(time.monotonic() + 60)
    assert Answer(own, lambda: {"a": [1]}).read(time.monotonic() + 60) == {"a": [1]}


def test_figures_of_a_wrong_type_and_characters_for_the_terminal_cost_one_line():
    good = Moment(1.0, {"program": "train\x1b[2J", "facades": {}})
    bad = Moment(1.0, json.loads('{"facades": 3, "moves": {"total": "many"}}'))
    out = io.StringIO()
    now = Moments({1: bad, 2: good}, ["/tmp/\x1b]0;title\udcff"])
    Console(file=out, width=200).print(picture(now, {1: bad}))
    lines = out.getvalue().splitlines()
    assert "2  train?[2J" in [line.strip() for line in lines]
    left_out = [line for line in lines if line.startswith("left out: ")]
    assert [line.split(":")[1] for line in left_out] == [
        " /tmp/?]0;title?", " figures of process 1"
    ]  # fmt: skip
    assert "\x1b" not in out.getvalue()


def test_a_process_that_has_taken_its_figures_away_has_ended() -> None:
    running = Moment(1.0, {"facades": {}})
    simulated_device_alone = Moment(2.0, {"simulator": {}})
    assert has_ended(running, simulated_device_alone)
    assert not has_ended(running, running)
    assert not has_ended(None, simulated_device_alone)


def test_a_process_that_is_none_is_refused_in_one_line(clean_environment):
    with subprocess.Popen(["sleep", "60"], env=clean_environment) as process:
        finished = top(clean_environment, str(process.pid))
        process.kill()
    assert finished.returncode == 1
    said = f"process {process.pid} does not run under `uvmalloc run` or `uvmalloc sim`"
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


def test_pages_that_the_driver_has_elsewhere_are_shown():
    compared = {"believed_bytes": 48 << 20, "real_bytes": 40 << 20}
    out = io.StringIO()
    moment = Moment(1.0, {"compared": compared})
    Console(file=out, width=200).print(picture(Moments({1: moment}, []), {}))
    assert "pages on devices: 48 MiB by uvmalloc's records, 40 MiB by the driver" in out.getvalue()
