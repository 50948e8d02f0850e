"""NVML reports no memory of a device that shares the host's memory. Then uvmalloc answers, for
programs that open NVML by its name (pynvml) and for programs that link to it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uvmalloc._cli.environment import Machine, without_uvmalloc
from uvmalloc.libraries import find_libraries

from tests.preload.conftest import CTYPES, Program, environment, run_on

NOT_SUPPORTED = 3
# Prints the result and the figures of each query. A structure is read as words of 8 bytes.
QUERIES = """
nvml = ctypes.CDLL(NVML)
device = pointer()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device)) == 0
def words(*first): return (ctypes.c_uint64 * 16)(*first)
def show(label):
    for name, first, start in (("MemoryInfo", 0, 0), ("MemoryInfo_v2", 0x2000028, 1),
                               ("BAR1MemoryInfo", 0, 0)):
        out = words(first)
        result = getattr(nvml, "nvmlDeviceGet" + name)(device, out)
        print(label, name, result, *out[start:start + 4])
    for version in ("", "_v2", "_v3"):
        out, count = words(), ctypes.c_uint(1)
        call = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses" + version)
        print(label, "Processes" + version, call(device, byref(count), out), count.value,
              int(out[0] == os.getpid()), out[1])
show("before")
runtime = ctypes.CDLL("libcudart.so.13")
assert allocate(runtime.cudaMalloc, size(64 * MIB))[0] == 0
show("after")
"""
# An NVML for which every device shares the host's memory, and that lists no processes.
OLDER = """
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device)
{ *device = device; return index != 0; }
"""
REFUSED = (
    "MemoryInfo",
    "MemoryInfo_v2",
    "BAR1MemoryInfo",
    *(f"ComputeRunningProcesses{version}" for version in ("", "_v2", "_v3")),
)
CAPACITY = 8 << 30
TOUCHED = 64 << 20


def queries(nvml: str | Path = "libnvidia-ml.so.1") -> str:
    return CTYPES + QUERIES.replace("NVML", repr(str(nvml)))


def figures(stdout: str) -> dict[tuple[str, str], list[int]]:
    lines = [line.split() for line in stdout.splitlines()]
    return {(label, name): [int(each) for each in rest] for label, name, *rest in lines}


def compiled(tmp_path: Path, name: str, text: str, *options: str | Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "no C compiler on the path"
    source = tmp_path / f"{name}.c"
    source.write_text(text)
    subprocess.run([compiler, "-o", tmp_path / name, source, *options], check=True)
    return tmp_path / name


@pytest.fixture
def integrated(tmp_path: Path) -> Program:
    return run_on(Machine(profile="integrated"), tmp_path)


def test_the_memory_of_an_integrated_device_is_the_machines(integrated: Program) -> None:
    found = figures(integrated(sys.executable, "-c", queries()).stdout)
    host_bytes = 1024 * int(re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[1])
    for name in ("MemoryInfo", "BAR1MemoryInfo"):
        result, total, free, used, *_ = found["before", name]
        assert (result, total, free + used) == (0, host_bytes, host_bytes)
        assert 0 < free < host_bytes
        result, total, free, used, *_ = found["after", name]
        assert (result, total, free + used) == (0, CAPACITY, CAPACITY)
        assert used >= TOUCHED
    result, total, reserved, free, used = found["after", "MemoryInfo_v2"]
    assert (result, total, reserved, free + used) == (0, CAPACITY, 0, CAPACITY)


def test_a_device_with_memory_of_its_own_is_reported_by_nvml(program: Program) -> None:
    served = program(sys.executable, "-c", queries()).stdout
    found = figures(served)
    assert found["before", "MemoryInfo"][:4] == [0, CAPACITY, CAPACITY, 0]
    assert found["before", "BAR1MemoryInfo"][:4] == [0, 256 << 20, 256 << 20, 0]


def test_without_uvmalloc_nvml_reports_no_memory(tmp_path: Path) -> None:
    variables = without_uvmalloc(environment(tmp_path, {}, Machine(profile="integrated")))
    command = [sys.executable, "-c", queries()]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    found = figures(done.stdout)
    for name in REFUSED[:3]:
        assert found["after", name][0] == NOT_SUPPORTED


def older_nvml(tmp_path: Path) -> Path:
    refuse = "".join(
        f"int nvmlDeviceGet{name}(void) {{ return {NOT_SUPPORTED}; }}\n" for name in REFUSED
    )
    return compiled(tmp_path, "libnvidia-ml.so.9", OLDER + refuse, "-shared", "-fPIC")


def test_processes_are_listed_if_nvml_lists_none(integrated: Program, tmp_path: Path) -> None:
    done = integrated(sys.executable, "-c", queries(older_nvml(tmp_path)))
    found = figures(done.stdout)
    for version in ("", "_v2", "_v3"):
        assert found["before", f"Processes{version}"][:2] == [0, 0]
        result, count, is_own, used = found["after", f"Processes{version}"]
        assert (result, count, is_own) == (0, 1, 1)
        assert TOUCHED <= used <= 2 * TOUCHED


def test_a_list_without_room_gets_the_number_of_processes(
    integrated: Program, tmp_path: Path
) -> None:
    text = queries(older_nvml(tmp_path)) + (
        "count = ctypes.c_uint(0)\n"
        "print(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, byref(count), None),"
        " count.value)\n"
    )
    done = integrated(sys.executable, "-c", text)
    assert done.stdout.splitlines()[-1] == "7 1"


def test_a_device_with_memory_of_its_own_stays_refused(program: Program, tmp_path: Path) -> None:
    found = figures(program(sys.executable, "-c", queries(older_nvml(tmp_path))).stdout)
    for name in REFUSED[:3]:
        assert found["after", name][0] == NOT_SUPPORTED
    assert found["after", "Processes_v3"][0] == NOT_SUPPORTED


LINKED = """
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void**);
int nvmlDeviceGetMemoryInfo(void*, unsigned long long*);
int main(void) {
  void* device = 0;
  unsigned long long memory[3] = {0};
  if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device)) return 1;
  if (nvmlDeviceGetMemoryInfo(device, memory)) return 2;
  return memory[0] == 0 || memory[1] > memory[0];
}
"""


def test_a_program_that_links_to_nvml_gets_the_answer(tmp_path: Path) -> None:
    library = find_libraries().stand_ins / "libnvidia-ml.so.1"
    program = compiled(tmp_path, "linked", LINKED, library)
    variables: dict[str, Any] = environment(tmp_path, {}, Machine(profile="integrated"))
    assert subprocess.run([program], env=variables).returncode == 0
    assert subprocess.run([program], env=without_uvmalloc(variables)).returncode == 2


WITHOUT_NVML = """
__attribute__((weak)) int nvmlDeviceGetMemoryInfo(void*, unsigned long long*);
int main(void) {
  unsigned long long memory[3] = {0};
  return nvmlDeviceGetMemoryInfo == 0 ? 9 : nvmlDeviceGetMemoryInfo(0, memory);
}
"""


def test_without_nvml_nothing_is_answered(tmp_path: Path) -> None:
    program = compiled(tmp_path, "without", WITHOUT_NVML)
    variables = environment(tmp_path, {}, Machine(profile="integrated"))
    assert subprocess.run([program], env=variables).returncode == NOT_SUPPORTED


def test_torch_reports_the_memory_of_an_integrated_device(tmp_path: Path) -> None:
    """torch.cuda.device_memory_used() calls NVML through pynvml; here by the same calls."""
    text = queries().split('show("before")')[0] + (
        "import torch\nhold = torch.ones(16 << 20, device='cuda')\ntorch.cuda.synchronize()\n"
        "out = words()\nprint(nvml.nvmlDeviceGetMemoryInfo(device, out), out[2] >= 64 * MIB)\n"
    )
    variables = environment(tmp_path, {}, Machine(profile="integrated"))
    variables |= {"UVMALLOC_CUDA": "auto", "PYTORCH_ENABLE_UNIFIED_MEMORY": "1"}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.stdout == "0 True\n", done.stderr
