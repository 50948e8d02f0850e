"""Programs for torch_memory_saver, served by groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch.conftest import Checked, Simulate

PROGRAM = """
import sys
import torch
import uvmalloc.memory_saver
uvmalloc.memory_saver.install()
from torch_memory_saver import torch_memory_saver
MIB = 1 << 20
def make():
    return torch.full((16 * MIB // 4,), 7.0, device='cuda')
with torch_memory_saver.region(tag='weights', enable_cpu_backup=True):
    weights = make()
    with torch_memory_saver.disable():
        other = make()
with torch_memory_saver.region(tag='kv cache'):
    cache = make()
graph = torch.cuda.CUDAGraph()
with torch_memory_saver.cuda_graph(graph, tag='graph', enable_cpu_backup=True):
    doubled = weights * 2
graph.replay()
torch_memory_saver.pause('kv cache')
torch_memory_saver.pause('weights')
backup = torch_memory_saver.get_cpu_backup(weights)
torch_memory_saver.resume('weights')
torch_memory_saver.resume()
cache.fill_(1)
graph.replay()
torch_memory_saver.pause()
torch_memory_saver.resume()
cache.fill_(1)
print(weights.sum().item(), cache.sum().item(), doubled.sum().item(), backup.sum().item(),
      other.sum().item())
"""


def test_regions_pause_and_resume_by_their_tags(simulate: Simulate, checked: Checked) -> None:
    run = checked(PROGRAM)
    assert run.stdout == simulate(PROGRAM, native=True).check().stdout
    groups = {each["name"]: each for each in run.report["groups"]}
    assert {name.split("-")[0] for name in groups} == {
        "saver/weights",
        "saver/kv_cache",
        "saver/graph",
    }
    assert groups["saver/weights"]["left_bytes"] >= 16 << 20


def test_a_model_that_is_made_on_the_host_is_not_given_up(checked: Checked) -> None:
    checked("""
import torch, uvmalloc
from uvmalloc.memory_saver import configure_subprocess, torch_memory_saver
with configure_subprocess(), torch_memory_saver.region(tag='cache'):
    model = torch.nn.Linear(2048, 2048)
    cache = torch.empty(4 << 20, device='cuda')
model.cuda()
group = uvmalloc.group('saver/cache/discarded')
assert group.figures().blocks == 1
torch_memory_saver.pause('cache')
assert 'device:0' in uvmalloc.residency(model.weight)
""")


def test_options_that_exclude_each_other_are_refused(checked: Checked) -> None:
    checked("""
from uvmalloc.memory_saver import torch_memory_saver
for named in ({'enable_cpu_backup': True, 'enable_disk_backup': True},
              {'cpu_backup_backend': 'mmap'}):
    try:
        with torch_memory_saver.region(**named):
            raise SystemExit('it was accepted')
    except ValueError as error:
        print(error)
""")


ON_DISK = """
import os, sys, torch, uvmalloc
from uvmalloc.memory_saver import torch_memory_saver
if sys.argv[2] == 'later':
    torch_memory_saver.set_disk_backup_dir(sys.argv[1])
with torch_memory_saver.region(tag='weights', enable_disk_backup=True):
    weights = torch.full((4 << 20,), 7.0, device='cuda')
torch_memory_saver.pause('weights')
figures = uvmalloc.group('saver/weights/disk').figures()
print(figures.state, figures.file_bytes)
torch_memory_saver.resume('weights')
print(weights.sum().item(), sorted(os.listdir(sys.argv[1])))
"""


def test_a_backup_on_disk_without_a_folder_is_on_the_host(checked: Checked) -> None:
    run = checked("""
import torch, warnings
from uvmalloc.memory_saver import torch_memory_saver
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter('always')
    with torch_memory_saver.region(tag='weights', enable_disk_backup=True):
        weights = torch.full((4 << 20,), 7.0, device='cuda')
print([str(each.message) for each in said], [each.filename == '<string>' for each in said])
""")
    assert run.stdout == (
        "['memory_saver: backups on disk are in host memory: no folder is set "
        "(TMS_DISK_BACKUP_DIR)'] [True]\n"
    )


@pytest.mark.parametrize("when", ["before", "later"])
def test_a_backup_on_disk_is_in_a_file(checked: Checked, folder_on_disk: Path, when: str) -> None:
    variables = {"UVMSIM_PROFILE": "coherent"}
    if when == "before":
        variables["TMS_DISK_BACKUP_DIR"] = str(folder_on_disk)
    run = checked(ON_DISK, str(folder_on_disk), when, environment=variables)
    assert run.stdout == f"in a file {16 << 20}\n{7.0 * (4 << 20)} []\n"


def test_a_backup_on_disk_is_on_the_host_where_the_device_reaches_no_other_memory(
    checked: Checked, folder_on_disk: Path
) -> None:
    run = checked(ON_DISK, str(folder_on_disk), "later")
    assert run.stdout == f"asleep 0\n{7.0 * (4 << 20)} []\n"
    assert "memory_saver: backups on disk are in host memory: " in run.stderr
