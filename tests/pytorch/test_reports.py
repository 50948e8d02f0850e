"""Reports on programs that end in any way, and on several processes."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from uvmalloc._cli import processes, report
from uvmalloc._cli.launch import Finished
from uvmalloc._cli.processes import collect, sum_of

Run = Callable[..., subprocess.CompletedProcess[str]]

UVMALLOC = (sys.executable, "-m", "uvmalloc")
MOVE = """
import os, signal, subprocess, sys, torch
torch.cuda.init()
x = torch.ones(1 << 20)
y = x.to("cuda")
assert y.sum().item() == 1 << 20
"""
ENDINGS = {
    "os._exit(3)": {"how": "exit", "exit_code": 3},
    "sys.exit(4)": {"how": "exit", "exit_code": 4},
    "os.kill(os.getpid(), signal.SIGTERM)": {"how": "signal", "signal": "SIGTERM"},
    "os.kill(os.getpid(), signal.SIGKILL)": {"how": "signal", "signal": "SIGKILL"},
    "os.kill(os.getppid(), signal.SIGINT); signal.pause()": {"how": "signal", "signal": "SIGINT"},
    "os.abort()": {"how": "signal", "signal": "SIGABRT"},
    "os.execv('/bin/sh', ['sh', '-c', 'exit 5'])": {"how": "exit", "exit_code": 5},
}


@pytest.fixture
def simulated(clean_environment, tmp_path) -> Run:
    """Returns a function that runs a program under `uvmalloc sim`, which writes report.json."""

    def run(text: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        file = ("--report", str(tmp_path / "report.json"))
        return subprocess.run(
            [*UVMALLOC, "sim", *file, *options, "--", sys.executable, "-c", text],
            env={**clean_environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDINGS)
def test_the_report_survives_every_end(simulated, tmp_path, end):
    finished = simulated(MOVE + end, "--capacity", "64MiB")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["ended"] == ENDINGS[end], finished.stderr
    assert saved["active"] is True
    assert saved["moves"]["host_to_device"] == 1
    assert saved["facades"]["host"]["allocations"] == 1
    assert saved["devices"][0]["total_bytes"] == 64 << 20
    assert saved["simulator"]["counters"]["kernels"] > 0
    assert 0 < saved["wall_seconds"] < 120
    assert "device moves: 1 (1 to a device)" in finished.stderr
    code = 128 + getattr(signal, saved["ended"].get("signal", ""), -128)
    assert finished.returncode == saved["ended"].get("exit_code", code)


def test_the_report_shows_cached_memory_beside_live(simulated, tmp_path):
    finished = simulated(
        """
import os, torch
MIB = 1 << 20
def make(mib, **options):
    return torch.ones(mib * MIB // 4, **options)
kept, pinned = make(8, device="cuda"), make(2, pin_memory=True)
host = make(4)
freed = [make(16, device="cuda"), make(6)]
moved = host.to("cuda")
del freed, host
os._exit(0)
"""
    )
    saved = json.loads((tmp_path / "report.json").read_text())
    memory = {
        name: (facade["live_bytes"] >> 20, facade["cached_bytes"] >> 20)
        for name, facade in saved["facades"].items()
    }
    assert memory == {"host": (0, 6), "pinned": (2, 0), "device": (12, 16)}
    assert saved["cached_bytes"] == 22 << 20
    assert [line.split()[-4:] for line in finished.stderr.splitlines() if " %  " in line] == [
        ["0", "B", "6", "MiB"],
        ["2", "MiB", "0", "B"],
        ["12", "MiB", "16", "MiB"],
    ]


def test_without_the_command_figures_stay_where_reports_are_wanted(simulated, tmp_path):
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    simulated(MOVE + "os._exit(0)", UVMALLOC_REPORT_DIR=str(wanted))
    (file,) = wanted.iterdir()
    assert file.name.endswith(".figures")
    finished = subprocess.run([*UVMALLOC, "report", file], capture_output=True, text=True)
    assert "device moves: 1 (1 to a device)" in finished.stdout


RANKS = """
import os, subprocess, sys
program = sys.argv[1]
ranks = [subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "RANK": str(rank)})
         for rank in (1, 0)]
assert [rank.wait() for rank in ranks] == [-9, 0]
"""
OF_RANK = (
    MOVE
    + """
if os.environ["RANK"] == "1":
    z = y.cpu()
    os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_each_process_has_a_report_and_there_is_a_sum(simulated, tmp_path):
    finished = simulated(RANKS.replace("sys.argv[1]", repr(OF_RANK)))
    assert finished.returncode == 0, finished.stderr
    saved = json.loads((tmp_path / "report.json").read_text())
    first, second = saved["processes"]
    assert (first["rank"], first["moves"]["total"]) == ("0", 1)
    assert (second["rank"], second["moves"]["total"]) == ("1", 2)
    assert first["ended"] == {"how": "exit"}
    assert second["ended"] == {"how": "unknown"}
    assert saved["launched"]["ended"] == {"how": "exit", "exit_code": 0}
    assert saved["moves"]["total"] == 3
    assert saved["threshold_bytes"] == 1 << 20
    kernels = [process["simulator"]["counters"]["kernels"] for process in (first, second)]
    assert all(kernels)
    assert saved["simulator"]["counters"]["kernels"] == sum(kernels)
    lines = finished.stderr.splitlines()
    titles = [line for line in lines if line.startswith("uvmalloc (")]
    assert titles[0].startswith(f"uvmalloc (process 1 of 2, rank 0, pid {first['pid']}): ")
    assert ", ended by a signal, a crash or os._exit, " in titles[1]
    assert titles[2].startswith("uvmalloc (sum of 2 processes)")
    assert len([line for line in lines if line.startswith("simulator: ")]) == 3


def test_the_simulators_counters_are_of_each_process_without_uvmalloc_too(simulated, tmp_path):
    text = "import torch; torch.ones(3, device='cuda').sum().item(); import os; os._exit(0)"
    simulated(text, "--native")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["active"] is False
    assert saved["simulator"]["counters"]["kernels"] > 0


NATIVE_CUDA = """
import ctypes
runtime = ctypes.CDLL("libcudart.so.13")
everything = ctypes.CDLL(None)
free, total, address = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
assert runtime.cudaSetDevice(0) == 0
assert everything.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
assert runtime.cudaMalloc(ctypes.byref(address), 1 << 20) == 0
assert total.value == 64 << 20
"""


def test_a_cuda_program_of_which_nothing_is_served_is_not_called_active(simulated, tmp_path):
    finished = simulated(NATIVE_CUDA, "--capacity", "64MiB", UVMALLOC_CUDA="0")
    assert finished.returncode == 0, finished.stderr
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["active"] is False
    assert "not served by uvmalloc" not in finished.stderr
    assert "this program did not use it" in finished.stderr


def test_a_cuda_program_is_served_where_it_runs_under_the_launcher(simulated, tmp_path):
    finished = simulated(NATIVE_CUDA, "--capacity", "64MiB", UVMALLOC_STARTUP_LINE="0")
    assert finished.returncode == 0, finished.stderr
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["active"] is True
    assert saved["cuda_calls"]["cudaMalloc"]["served"] > 0
    assert "CUDA calls served: cudaMalloc" in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("use", ["", "torch.ones(4, device='cuda')"])
def test_a_program_that_allocates_before_it_imports_torch_has_a_report(simulated, tmp_path, use):
    """The report is written after torch has destroyed its allocators."""
    program = f"{NATIVE_CUDA}\nimport torch\n{use}\n"
    finished = simulated(program, "--capacity", "64MiB", UVMALLOC_STARTUP_LINE="0")
    assert finished.returncode == 0, finished.stderr
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["ended"]["how"] == "exit" and saved["framework"] is True
    assert saved["native_allocations"] == {"device": 0, "pinned": 0, "host": 0}
    assert saved["cuda_calls"]["cudaMalloc"]["served"] == 1


# ---- what is in a folder ------------------------------------------------------------------------


def of_process(pid: int, moves: int, **more: object) -> dict[str, object]:
    facades = {"device": {"allocations": moves, "peak_bytes": 10 * moves}}
    return {"active": True, "pid": pid, "moves": {"total": moves}, "facades": facades, **more}


def write(folder: Path, pid: int, moves: int, **more: object) -> None:
    (folder / f"report.{pid}.json").write_text(json.dumps(of_process(pid, moves, **more)))


def test_the_launched_process_comes_first_then_ranks_then_the_oldest(tmp_path):
    write(tmp_path, 10, 1, start_time=5.0)
    write(tmp_path, 11, 2, start_time=4.0)
    write(tmp_path, 12, 3, rank="1", start_time=3.0)
    write(tmp_path, 13, 4, rank="0", start_time=9.0)
    write(tmp_path, 14, 5, start_time=10.0)
    found, _ = collect(tmp_path, ["train"], Finished(14, 0, None, 20.0), "reason")
    assert [process["pid"] for process in found["processes"]] == [14, 13, 12, 11, 10]
    assert found["processes"][0]["wall_seconds"] == 10.0
    assert found["moves"]["total"] == 15
    assert "pid" not in found


def test_one_process_is_the_report_itself(tmp_path):
    write(tmp_path, 10, 1)
    found, _ = collect(tmp_path, ["sh", "-c", "train"], Finished(9, 3, None, 20.0), "reason")
    assert (found["pid"], found["moves"]["total"]) == (10, 1)
    assert found["ended"] == {"how": "exit"}
    assert found["launched"]["command"] == ["sh", "-c", "train"]
    assert found["launched"]["ended"] == {"how": "exit", "exit_code": 3}


def test_a_sum_has_no_limits_and_says_what_is_not_known_of_all():
    first = of_process(1, 1, threshold_bytes=1024, budget_bytes=5, wall_seconds=3.0)
    first |= {"native_allocations": {"device": 1}, "program": "a", "policy": "auto"}
    second = of_process(2, 2, threshold_bytes=1024, budget_bytes=6, wall_seconds=2.0)
    second |= {"native_allocations": None, "program": "b", "policy": "auto"}
    assert sum_of([first, second]) == {
        "active": True,
        "moves": {"total": 3},
        "facades": {"device": {"allocations": 3, "peak_bytes": 30}},
        "threshold_bytes": 1024,
        "wall_seconds": 3.0,
        "native_allocations": None,
        "policy": "auto",
    }


def test_figures_of_a_process_that_went_on_or_still_runs_say_so(tmp_path, monkeypatch):
    own_start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])

    def read(file: Path) -> dict[str, object]:
        pid = int(file.name.split(".")[1].split("-")[0])
        return of_process(pid, 1, start_ticks=own_start)

    gone = 4_000_000  # above the largest process ID
    for name in (f"{gone}", f"{gone}-2", f"{os.getpid()}"):
        (tmp_path / f"report.{name}.figures").touch()
    monkeypatch.setattr(processes, "read_found", read)
    found, _ = collect(tmp_path, ["train"], Finished(9, 0, None, 20.0), "reason")
    how = [(process["pid"], process["ended"]["how"]) for process in found["processes"]]
    assert sorted(how) == sorted([(gone, "exec"), (gone, "unknown"), (os.getpid(), "running")])


def test_a_damaged_file_leaves_the_reports_of_other_processes(tmp_path):
    write(tmp_path, 10, 1)
    (tmp_path / "report.11.json").write_text("{")
    (tmp_path / "report.12.figures").write_bytes(b"uvmalloc-fig-1")
    (tmp_path / "sim.13.json").write_text("[]")
    os.mkfifo(tmp_path / "sim.14.json.counters")
    found, left_out = collect(tmp_path, ["train"], Finished(10, 0, None, 20.0), "reason")
    assert (found["pid"], found["moves"]["total"]) == (10, 1)
    names = ["report.11.json", "report.12.figures", "sim.13.json", "sim.14.json.counters"]
    assert len(left_out) == len(names)
    for name, line in zip(names, left_out, strict=True):
        assert str(tmp_path / name) in line


def test_counters_that_a_killed_process_left_are_read(tmp_path):
    header = {"pid": 7, "program": "train", "counters": {"kernels": 1, "copy_calls": 0}}
    content = json.dumps(header).encode().ljust(4096) + struct.pack("<2Q", 5, 6)
    (tmp_path / "sim.7.json.counters").write_bytes(content)
    found, _ = collect(tmp_path, ["train"], Finished(7, 0, None, 20.0), "left out")
    assert found["simulator"]["counters"] == {"kernels": 6, "copy_calls": 5}
    assert (found["active"], found["reason"]) == (False, "left out")
    out = io.StringIO()
    report.show_report(found, Console(file=out, width=80))
    assert out.getvalue().startswith("uvmalloc: train, not active: left out\nsimulator: 6 kernels")
