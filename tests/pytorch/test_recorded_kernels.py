"""Kernels of PyTorch programs in the trace: their operations, and replays on other machines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from uvmalloc._trace.reader import KERNEL, MARK, TOUCH, WORK, Trace, read_trace
from uvmalloc.libraries import Libraries

from tests.pytorch.conftest import Simulate

STEPS = """
import torch, uvmalloc
weights = [torch.randn(512, 512, device='cuda') for _ in range(4)]
x = torch.randn(512, 512, device='cuda')
for step in range(3):
    uvmalloc.mark(f'step {step}')
    for weight in weights:
        x = x @ weight
    torch.cuda.synchronize()
uvmalloc.mark('end')
"""
MIB = 1 << 20


@pytest.fixture
def recorded(simulate: Simulate, tmp_path: Path):
    def record(program: str) -> Path:
        file = tmp_path / "recorded.trace"
        simulate(program, environment={"UVMALLOC_TRACE": str(file)}).check()
        return file

    return record


@pytest.fixture
def replay(libraries: Libraries):
    def run(file: Path, *options: str) -> dict[str, Any]:
        finished = subprocess.run(
            [str(libraries.machine_replay), str(file), *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        result: dict[str, Any] = json.loads(finished.stdout)
        return result

    return run


def kernels_after(trace: Trace, mark: str) -> list[tuple[str, int]]:
    """Returns type and amount of the kernels between that mark and the next mark."""
    kernels, chosen = [], False
    for event in trace.events:
        if event["kind"] == MARK:
            chosen = trace.text(MARK, int(event["extra"])) == mark
        elif chosen and event["kind"] == KERNEL:
            kernels.append((WORK[int(event["detail"])], int(event["size_bytes"])))
    return kernels


# An expression of `torch` and tensors of these shapes, and the operations of its one kernel.
# Convolutions may use tensor cores for float32 unless a program forbids it.
OPERATIONS = [
    ("torch.mm(a, b)", [(64, 32), (32, 16)], "float32", 2 * 64 * 32 * 16),
    ("torch.bmm(a, b)", [(3, 8, 32), (3, 32, 16)], "float32", 2 * 3 * 8 * 32 * 16),
    ("torch.addmm(c, a, b)", [(64, 32), (32, 16), (16,)], "float32", 2 * 64 * 32 * 16),
    ("torch.mv(a, b)", [(64, 32), (32,)], "float32", 2 * 64 * 32),
    ("torch.mm(a.half(), b.half())", [(64, 32), (32, 16)], "float16", 2 * 64 * 32 * 16),
    ("torch.mm(a.double(), b.double())", [(64, 32), (32, 16)], "float64", 2 * 64 * 32 * 16),
    ("torch.add(a, b)", [(64, 32), (64, 32)], "float32", 64 * 32),
    ("F.conv2d(a, b, padding=1, stride=2)", [(2, 3, 8, 8), (5, 3, 3, 3)], "tensor_float32",
     2 * 2 * 5 * 4 * 4 * 3 * 3 * 3),
    ("F.conv2d(a, b, groups=3)", [(2, 3, 8, 8), (6, 1, 3, 3)], "tensor_float32",
     2 * 2 * 6 * 6 * 6 * 3 * 3),
    ("F.conv_transpose2d(a, b)", [(2, 3, 4, 4), (3, 5, 2, 2)], "tensor_float32",
     2 * 2 * 3 * 4 * 4 * 5 * 2 * 2),
]  # fmt: skip


def test_operators_say_how_many_operations_they_do(recorded) -> None:
    lines = ["import torch, uvmalloc", "import torch.nn.functional as F"]
    for number, (expression, shapes, _, _) in enumerate(OPERATIONS):
        for name, shape in zip("abc", shapes, strict=False):
            lines.append(f"{name} = torch.randn({shape}, device='cuda')")
        lines += [f"uvmalloc.mark('{number}')", expression, "uvmalloc.mark('end')"]
    trace = read_trace(recorded("\n".join(lines)))
    for number, (expression, _, kind, operations) in enumerate(OPERATIONS):
        assert (kind, operations) in kernels_after(trace, str(number)), expression


def test_a_backward_convolution_is_a_pass_for_each_gradient(recorded) -> None:
    program = """
import torch, uvmalloc
import torch.nn.functional as F
a = torch.randn(2, 3, 8, 8, device='cuda', requires_grad={})
b = torch.randn(5, 3, 3, 3, device='cuda', requires_grad=True)
loss = F.conv2d(a, b).sum()
uvmalloc.mark('backward')
loss.backward()
uvmalloc.mark('end')
"""
    forward = 2 * 2 * 5 * 6 * 6 * 3 * 3 * 3
    for needs_input, passes in ((True, 2), (False, 1)):
        trace = read_trace(recorded(program.format(needs_input)))
        assert ("tensor_float32", passes * forward) in kernels_after(trace, "backward")


def test_tensor_cores_count_where_the_program_allows_them(recorded) -> None:
    trace = read_trace(
        recorded("""
import torch, uvmalloc
torch.backends.cuda.matmul.allow_tf32 = True
a = torch.randn(64, 64, device='cuda')
uvmalloc.mark('product')
a @ a
""")
    )
    assert ("tensor_float32", 2 * 64**3) in kernels_after(trace, "product")


def test_touches_of_a_kernel_follow_it(recorded) -> None:
    trace = read_trace(recorded(STEPS))
    kinds = trace.events["kind"].tolist()
    products = [
        number for number, event in enumerate(trace.events)
        if event["kind"] == KERNEL and event["size_bytes"] == 2 * 512**3
    ]  # fmt: skip
    assert len(products) == 12
    for number in products:
        touches = trace.events[number + 1 : number + 1 + int(trace.events[number]["extra"])]
        assert (touches["kind"] == TOUCH).all()
        assert touches["size_bytes"].tolist() == [MIB] * 3
        assert sorted(touches["detail"].tolist()) == [1, 1, 2]
    assert kinds.count(KERNEL) >= 12


def test_a_recorded_step_replays_on_any_machine(recorded, replay) -> None:
    file = recorded(STEPS)
    fast = replay(file, "--machine", "h100-pcie5")
    assert [step["mark"] for step in fast["steps"]] == ["", "step 0", "step 1", "step 2", "end"]
    assert [step["kernels"] for step in fast["steps"][1:4]] == [4, 4, 4]
    # 2 * 512^3 operations at 51 TFLOP/s, after a launch of 2 us.
    assert fast["steps"][2]["kernel_ns"] == pytest.approx(4 * (2000 + 2 * 512**3 / 51e3), abs=8)
    slow = replay(file, "--machine", "gtx1080-pcie3")
    assert slow["steps"][2]["duration_ns"] > fast["steps"][2]["duration_ns"]
    assert replay(file, "--machine", "h100-pcie5") == {**fast, "real_ns": _any(slow)}


class _any:
    def __init__(self, _: object) -> None: ...
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    __hash__ = None  # type: ignore[assignment]


def test_less_memory_than_a_step_needs_makes_it_move(recorded, replay) -> None:
    file = recorded("""
import torch, uvmalloc
weights = [torch.zeros(8 << 20, device='cuda') for _ in range(4)]  # 32 MiB each
for step in range(2):
    uvmalloc.mark(f'step {step}')
    for weight in weights:
        weight.add_(1)
uvmalloc.mark('end')
""")
    roomy = replay(file, "--machine", "h100-pcie5", "--hints", "none")
    assert roomy["counters"]["evicted_chunks"] == 0
    short = replay(file, "--machine", "h100-pcie5", "--hints", "none", "--capacity", "96MiB",
                   "--blocks", "2", "--samples", "5")  # fmt: skip
    step = short["steps"][2]
    assert step["mark"] == "step 1"
    assert step["migrated_bytes_to_device"] == 128 * MIB
    assert step["duration_ns"] > 10 * roomy["steps"][2]["duration_ns"]
    assert [block["size_bytes"] for block in short["blocks"]] == [32 * MIB] * 2
    assert all(sample["resident_bytes"][0] <= 96 * MIB for sample in short["samples"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--machine", "none.toml"], "none.toml"),
        (["--capacity", "0"], "--capacity is '0'; accepted: a size from 2MiB to 64TiB"),
        (["--hints", "all"], "--hints is 'all'; accepted: none, recorded"),
        (["--samples", "0"], "--samples is '0'; accepted: a whole number from 1"),
        (["--machine"], "--machine: 1 required TEXT missing"),
    ],
)
def test_options_that_mean_nothing_are_refused_in_one_line(libraries, recorded, options, said):
    finished = subprocess.run(
        [str(libraries.machine_replay), str(recorded(STEPS)), *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (finished.returncode, finished.stdout) == (2, "")
    assert said in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_where_the_hosts_memory_ends_the_replay_ends_and_says_so(libraries, recorded) -> None:
    file = recorded("""
import torch
weights = [torch.zeros(8 << 20, device='cuda') for _ in range(8)]  # 32 MiB each
for weight in weights:
    weight.add_(1)
torch.cuda.synchronize()
""")
    options = ["--machine", "h100-pcie5", "--hints", "none", "--capacity", "64MiB"]
    finished = subprocess.run(
        [str(libraries.machine_replay), str(file), *options, "--host-memory", "32MiB"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (1, "")
    failure = json.loads(finished.stdout)["failure"]
    assert failure.endswith("finds no memory on the device or the host")


def test_a_trace_that_is_cut_short_is_refused(libraries, recorded, tmp_path) -> None:
    file = tmp_path / "cut.trace"
    file.write_bytes(recorded(STEPS).read_bytes()[:-100])
    finished = subprocess.run(
        [str(libraries.machine_replay), str(file)], capture_output=True, text=True, check=False
    )
    assert (finished.returncode, finished.stdout) == (2, "")
    assert str(file) in finished.stderr
    assert "truncated" in finished.stderr
