"""Groups that sleep in a file (docs/reference/groups.md, "Sleep in a file")."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pytorch.conftest import REFUSED_PRELUDE, Checked

PRELUDE = (
    REFUSED_PRELUDE
    + """
import os, sys, threading, torch, uvmalloc
from pathlib import Path
MIB = 1 << 20
folder = sys.argv[1]
def tensors(count=4, mib=16):
    return [torch.randn(mib * MIB // 4, device='cuda') for _ in range(count)]
def anonymous():
    lines = Path('/proc/self/smaps_rollup').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith('Anonymous:')) << 10
def opened():
    links = []
    for name in os.listdir('/proc/self/fd'):
        try:
            links.append(os.readlink('/proc/self/fd/' + name))
        except OSError:
            pass
    return [link for link in links if link.startswith(folder + '/')]
torch.manual_seed(0)
"""
)
COHERENT = {"UVMSIM_PROFILE": "coherent"}
HMM = {"UVMSIM_PROFILE": "hmm"}
ONE_MEMORY = {"UVMSIM_MACHINE": "gb10"}


@pytest.fixture
def folder(folder_on_disk: Path) -> Path:
    return folder_on_disk


@pytest.mark.parametrize(
    "environment", [COHERENT, HMM, ONE_MEMORY], ids=["coherent", "hmm", "one memory"]
)
def test_models_sleep_and_wake_with_their_bytes(
    same_output: Checked, folder: Path, environment: dict[str, str]
) -> None:
    run = same_output(
        """
with uvmalloc.group('llm', file=folder) as group:
    made = tensors()
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
x = torch.randn(8, 1024, device='cuda')
for round in range(3):
    print(model(x).sum().item(), [t.sum().item() for t in made])
    before = group.figures()
    group.sleep()
    figures = group.figures()
    if figures.blocks:
        assert figures.state == 'in a file', figures
        assert figures.file_bytes == figures.spill_bytes == figures.page_bytes, figures
        assert figures.page_bytes >= 80 * MIB, figures
        assert figures.device_bytes == figures.host_bytes == 0, figures
    if round == 1:
        print(model(x).sum().item(), made[0][5].item())
        made[1].add_(1)
    group.wake()
    assert group.figures().file_bytes == 0
    print(model(x).sum().item(), [t.sum().item() for t in made])
""",
        str(folder),
        environment=environment,
    )
    (group,) = run.report["groups"]
    assert group["state"] == "awake" and group["sleeps"] == 3


@pytest.mark.parametrize("environment", [COHERENT, ONE_MEMORY], ids=["coherent", "one memory"])
def test_a_group_in_a_file_takes_no_memory(
    checked: Checked, folder: Path, environment: dict[str, str]
) -> None:
    checked(
        """
with uvmalloc.group('llm', file=folder) as group:
    made = tensors(8)
torch.cuda.synchronize()
before = anonymous()
group.sleep()
assert before - anonymous() > 0.99 * group.figures().page_bytes, (before, anonymous())
assert len(opened()) == 1
group.sleep()
assert len(opened()) == 1
group.wake()
group.sleep()
assert len(opened()) == 1, 'weights that were only read are not written again'
del made
assert opened() == []
assert group.figures().page_bytes == 0
""",
        str(folder),
        environment=environment,
    )


@pytest.mark.parametrize(
    "environment", [COHERENT, HMM, ONE_MEMORY], ids=["coherent", "hmm", "one memory"]
)
def test_a_model_that_no_kernel_has_used_goes_to_the_file_once_when_it_is_idle(
    checked: Checked, folder: Path, environment: dict[str, str]
) -> None:
    checked(
        """
import time
group = uvmalloc.group('llm', file=folder, idle='20ms')
with group:
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
deadline = time.monotonic() + 60
while group.figures().file_bytes < 16 * MIB:
    assert time.monotonic() < deadline, group.figures()
begin = time.monotonic()
while time.monotonic() < begin + 0.2:
    pass
assert group.figures().sleeps == 1, group.figures()
model(torch.ones(1, 1024, device='cuda')).sum().item()
""",
        str(folder),
        environment=environment,
    )


def test_a_device_that_does_not_reach_ordinary_memory_is_named(
    checked: Checked, folder: Path
) -> None:
    checked(
        """
refused(ValueError, 'does not reach ordinary memory (pageable memory access)',
        lambda: uvmalloc.group('llm', file=folder))
assert uvmalloc.group('llm').sleep() == 0
""",
        str(folder),
    )


def test_bad_folders_and_values_are_named(checked: Checked, folder: Path) -> None:
    checked(
        """
group = uvmalloc.group('llm')
refused(ValueError, '"/no/such/folder": No such file or directory',
        lambda: group.configure(file='/no/such/folder'))
refused(ValueError, 'are in memory, so they free none', lambda: group.configure(file='/dev/shm'))
refused(ValueError, 'Not a directory', lambda: group.configure(file='/dev/null'))
refused(TypeError, 'file is a int', lambda: group.configure(file=3))
refused(TypeError, 'file is a bytes', lambda: group.configure(file=b'/tmp'))
refused(ValueError, 'file is', lambda: group.configure(file='a\\0b'))
group.configure(file=Path(folder))
with group:
    held = tensors(1)
group.configure(file='')
with group:
    held += tensors(1)
assert group.figures().spill_bytes == 16 * MIB, group.figures()
group.configure(file=folder)
os.rmdir(folder)
refused(RuntimeError, 'No such file or directory', group.sleep)
assert group.figures().state == 'awake'
os.mkdir(folder)
group.sleep()
assert group.figures().file_bytes == 16 * MIB
""",
        str(folder),
        environment=COHERENT,
    )


def test_a_file_that_is_too_large_leaves_the_group_where_it_was(
    checked: Checked, folder: Path
) -> None:
    checked(
        """
import resource
with uvmalloc.group('llm', file=folder) as group:
    held = tensors()
sums = [t.sum().item() for t in held]
before = group.figures()
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (16 * MIB, limit[1]))
refused(RuntimeError, f'a file in "{folder}" cannot be written: File too large', group.sleep)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
assert group.figures() == before and before.state == 'awake'
assert sums == [t.sum().item() for t in held]
group.sleep()
assert sums == [t.sum().item() for t in held]
""",
        str(folder),
        environment=COHERENT,
    )


def test_threads_streams_and_graphs_use_a_group_in_a_file(checked: Checked, folder: Path) -> None:
    checked(
        """
with uvmalloc.group('llm', file=folder) as group:
    held = tensors(2)
expected = [t.double().sum().item() for t in held]
graph, out = torch.cuda.CUDAGraph(), torch.zeros(1, device='cuda')
with torch.cuda.graph(graph):
    out.copy_(held[0].sum())
graph.replay()
first = out.item()
wrong = []
def use(stream):
    with torch.cuda.stream(stream):
        for _ in range(20):
            if [t.double().sum().item() for t in held] != expected:
                wrong.append(stream)
def cycle():
    for _ in range(5):
        group.sleep()
        group.wake()
threads = [threading.Thread(target=use, args=(torch.cuda.Stream(),)) for _ in range(2)]
threads += [threading.Thread(target=cycle) for _ in range(2)]
for each in threads: each.start()
for each in threads: each.join()
assert not wrong
group.sleep()
graph.replay()
assert out.item() == first
with torch.cuda.stream(torch.cuda.Stream()):
    group.wake()
assert [t.double().sum().item() for t in held] == expected
""",
        str(folder),
        environment=COHERENT,
    )


def test_each_device_has_its_own_pages(checked: Checked, folder: Path) -> None:
    checked(
        """
with uvmalloc.group('llm', file=folder) as group:
    held = [torch.full((4 * MIB,), float(index), device=f'cuda:{index}') for index in range(2)]
group.sleep(device=1)
assert group.figures().file_bytes == 16 * MIB, group.figures()
assert [t[7].item() for t in held] == [0, 1]
group.sleep()
assert group.figures().file_bytes == 32 * MIB
assert group.wake(device=0) == 16 * MIB
assert group.figures().file_bytes == 16 * MIB
assert [t[7].item() for t in held] == [0, 1]
""",
        str(folder),
        devices=2,
        environment=COHERENT,
    )


def test_a_forked_child_reads_a_group_in_a_file(checked: Checked, folder: Path) -> None:
    checked(
        """
torch.set_num_threads(1)  # a forked child has no other threads
with uvmalloc.group('llm', file=folder) as group:
    weights = torch.arange(4 * MIB, dtype=torch.float32)
on_device = weights.cuda()
group.sleep()
assert group.figures().file_bytes == 16 * MIB, group.figures()
child = os.fork()
if child == 0:
    right = torch.equal(weights, torch.arange(4 * MIB, dtype=torch.float32))
    assert uvmalloc.groups() == {}
    refused(RuntimeError, 'fork', group.sleep)
    os._exit(0 if right else 1)
on_device.zero_()
assert os.waitpid(child, 0)[1] == 0
group.wake()
assert on_device.sum().item() == 0
""",
        str(folder),
        environment=COHERENT,
    )


def test_settings_without_code_name_a_folder(checked: Checked, folder: Path) -> None:
    checked(
        """
with uvmalloc.group('llm') as group:
    held = tensors(1)
group.sleep()
assert group.figures().state == 'in a file'
refused(ValueError, '/no/such/folder', lambda: uvmalloc.group('bad').sleep())
""",
        str(folder),
        environment={**COHERENT, "UVMALLOC_GROUPS": f"llm:file={folder};bad:file=/no/such/folder"},
    )


def test_a_killed_program_leaves_no_file(
    folder: Path, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        PRELUDE
        + """
with uvmalloc.group('llm', file=folder) as group:
    held = tensors()
group.sleep()
print('asleep', flush=True)
time.sleep(60)
"""
    )
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--profile", "coherent"]
    with subprocess.Popen(
        [*command, "--", sys.executable, str(program), str(folder)],
        env=clean_environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "asleep\n"
        os.killpg(started.pid, signal.SIGKILL)
    assert list(folder.iterdir()) == []


def test_uses_by_the_group_are_written_while_others_free(checked: Checked, folder: Path) -> None:
    """Tensors that die while their group is in a file give their memory back."""
    checked(
        """
with uvmalloc.group('llm', file=folder) as group:
    held = tensors(8)
sums = [t.sum().item() for t in held]
group.sleep()
del held[::2]
torch.cuda.empty_cache()
assert group.figures().file_bytes == 64 * MIB
new = tensors(4)
with group:
    own = tensors(4)
group.wake()
assert sums[1::2] == [t.sum().item() for t in held]
group.sleep()
assert sums[1::2] == [t.sum().item() for t in held]
""",
        str(folder),
        environment=COHERENT,
    )


SAVED = """
from safetensors.torch import save_file
file = Path(folder).parent / f'{Path(folder).name}.safetensors'
def written_bytes():
    # By uvmalloc, to files of the group.
    links = [Path('/proc/self/fd') / name for name in os.listdir('/proc/self/fd')]
    return sum(link.stat().st_blocks * 512 for link in links
               if link.is_symlink() and os.readlink(link).startswith(folder + '/'))
def saved(remainder, **tensors):
    # Of the offset of the first tensor, divided by 16: the header has a multiple of 8 bytes.
    for fill in ('', 'x' * 8):
        save_file(tensors, file, {'fill': fill})
        if (8 + int.from_bytes(file.read_bytes()[:8], 'little')) % 16 == remainder:
            return
    raise AssertionError(remainder)
"""


@pytest.mark.parametrize(
    "environment", [COHERENT, HMM, ONE_MEMORY], ids=["coherent", "hmm", "one memory"]
)
def test_weights_sleep_in_the_file_that_they_were_read_from(
    same_output: Checked, folder: Path, environment: dict[str, str]
) -> None:
    try:
        same_output(
            SAVED
            + """
saved(0, a=torch.randn(2 << 20), b=torch.randn(1 << 19).half(), c=torch.randn(1 << 10, 1 << 10),
      d=torch.ones(()), e=torch.empty(0, 3))
stock = uvmalloc.load_safetensors(file, 'cuda')
llm = uvmalloc.group('llm', file=folder)
found = llm.load(file)
assert found.keys() == stock.keys()
for name, tensor in found.items():
    assert tensor.dtype == stock[name].dtype and tensor.shape == stock[name].shape, name
    assert tensor.equal(stock[name]) and tensor.is_cuda, name
    assert tensor.data_ptr() % 16 == 0
if uvmalloc.enabled():
    assert found['a'].untyped_storage().nbytes() > found['a'].nbytes, 'they share one storage'
    assert found['b'].untyped_storage().nbytes() == found['b'].nbytes, 'it begins after 4 bytes'
for round in range(3):
    llm.sleep()
    figures = llm.figures()
    if uvmalloc.enabled():
        assert figures.file_bytes == figures.page_bytes >= 14 * MIB, figures
        # The last page of the file, the page of `b`, and the pages that were changed.
        assert written_bytes() <= 4 * MIB + round * 2 * MIB, written_bytes()
    print([tensor.float().sum().item() for tensor in found.values()])
    llm.wake()
    print([tensor.float().sum().item() for tensor in found.values()])
    found['c'].view(-1)[0] += 1
file.unlink()
llm.sleep()
print([tensor.float().sum().item() for tensor in found.values()])
""",
            str(folder),
            environment=environment,
        )
    finally:
        folder.with_suffix(".safetensors").unlink(missing_ok=True)


def test_a_file_with_tensors_at_odd_offsets_is_read_as_usual(
    same_output: Checked, folder: Path
) -> None:
    try:
        same_output(
            SAVED
            + """
saved(8, a=torch.arange(5, dtype=torch.uint8), b=torch.randn(2 << 20).double())
with uvmalloc.group('llm', file=folder) as llm:
    found = llm.load(file)
    on_host = llm.load(file, 'cpu')
llm.sleep()
for made in (found, on_host):
    print({name: (each.double().sum().item(), each.device.type) for name, each in made.items()})
assert found['b'].untyped_storage().nbytes() == 16 * MIB
llm.wake()
file.write_bytes(b'no')
refused(ValueError, 'it has 2 bytes', lambda: llm.load(file))
refused(FileNotFoundError, 'none.safetensors', lambda: llm.load(folder + '/none.safetensors'))
""",
            str(folder),
            environment=COHERENT,
        )
    finally:
        folder.with_suffix(".safetensors").unlink(missing_ok=True)
