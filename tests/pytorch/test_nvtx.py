"""UVMALLOC_NVTX: a profiler's library, loaded as NVTX loads it, sees uvmalloc's own work."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.build_facts import found_by_cmake
from tests.pytorch.conftest import Simulate

# Writes a line for each range that begins or ends, to the file NVTX_SEEN.
TOOL = r"""
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE* seen;
static void line(const char* what, const char* name, unsigned long long payload) {
  pthread_mutex_lock(&lock);
  fprintf(seen, "%s|%s|%llu|%lu\n", what, name, payload, (unsigned long)pthread_self());
  fflush(seen);
  pthread_mutex_unlock(&lock);
}
static nvtxDomainHandle_t NVTX_API create(const char* name) {
  line("domain", name, 0);
  return (nvtxDomainHandle_t)&lock;
}
static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  if (domain == (nvtxDomainHandle_t)&lock)
    line("begin", range->message.ascii, range->payloadType ? range->payload.ullValue : 0);
  return 0;
}
static int NVTX_API pop(nvtxDomainHandle_t domain) {
  if (domain == (nvtxDomainHandle_t)&lock) line("end", "", 0);
  return 0;
}
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const NvtxExportTableCallbacks* tables =
      (const NvtxExportTableCallbacks*)get(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = 0;
  unsigned int size = 0;
  seen = fopen(getenv("NVTX_SEEN"), "a");
  if (!tables->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
"""
PROGRAM = """
import threading, torch, uvmalloc
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(12)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(64, 1024, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(6):
    step()
side = threading.Thread(target=step)
side.start()
side.join()
kept = torch.ones(4 << 20, device='cuda:1')
group = uvmalloc.group('g').add(kept)
group.sleep()
group.wake()
torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvtx")
    source, library = folder / "tool.c", folder / "tool.so"
    source.write_text(TOOL)
    include = found_by_cmake("UVMALLOC_CUDA_INCLUDE_DIR")
    command = ["cc", "-shared", "-fPIC", "-w", f"-I{include}", "-o", library, source, "-lpthread"]
    subprocess.run(command, check=True)
    return library


def seen_by(simulate: Simulate, tool: Path, setting: str, tmp_path: Path) -> list[list[str]]:
    seen = tmp_path / "seen"
    simulate(
        PROGRAM,
        devices=2,
        capacity="48MiB",
        environment={
            "UVMALLOC_NVTX": setting,
            "NVTX_INJECTION64_PATH": str(tool),
            "NVTX_SEEN": str(seen),
        },
    ).check()
    return [line.split("|") for line in seen.read_text().splitlines()] if seen.exists() else []


def test_a_profiler_sees_the_work_of_each_kind(simulate, tool, tmp_path) -> None:
    lines = seen_by(simulate, tool, "1", tmp_path)
    assert [name for what, name, *_ in lines if what == "domain"] == ["uvmalloc"]
    begun = Counter(name for what, name, *_ in lines if what == "begin")
    assert begun.keys() == {"prefetch", "evict", "plan", "sleep", "wake"}
    assert begun["sleep"] == begun["wake"] == 1
    moved = [int(size) for what, name, size, _ in lines if name in ("prefetch", "evict")]
    assert min(moved) >= 2 << 20
    assert all(size % (2 << 20) == 0 for size in moved)
    depths: Counter[str] = Counter()
    for what, _, _, thread in lines:
        depths[thread] += {"begin": 1, "end": -1}.get(what, 0)
        assert depths[thread] >= 0, "a range ends on the thread that began it"
    assert set(depths.values()) == {0}
    assert len(depths) >= 2


def test_without_the_setting_a_profiler_sees_nothing(simulate, tool, tmp_path) -> None:
    assert not [line for line in seen_by(simulate, tool, "0", tmp_path) if line[1] == "uvmalloc"]
