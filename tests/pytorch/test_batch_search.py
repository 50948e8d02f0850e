"""Searches for the largest batch, which need an out-of-memory error of the device."""

from __future__ import annotations

import re

import pytest

from tests.pytorch.conftest import Simulate

CAPACITY = "64MiB"

# Three steps of a network. A batch of about 2,000 rows fits.
TRAIN = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
def train(batch_size):
    widths = [256, 1024, 1024, 16]
    layers = [torch.nn.Sequential(torch.nn.Linear(*pair), torch.nn.ReLU())
              for pair in zip(widths, widths[1:])]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(batch_size, 256, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    return batch_size
"""

ACCELERATE = (
    TRAIN
    + """
from accelerate import find_executable_batch_size
print(find_executable_batch_size(train, starting_batch_size=8192)())
"""
)

# The loop of Lightning's tuner, with its function names.
LIGHTNING = (
    TRAIN
    + """
import gc
def is_oom_error(exception):
    return isinstance(exception, RuntimeError) and "CUDA out of memory." in str(exception)
def _run_power_scaling(size, most):
    fits = 0
    while size <= most:
        gc.collect()
        torch.cuda.empty_cache()
        try:
            train(size)
        except RuntimeError as exception:
            if not is_oom_error(exception):
                raise
            break
        fits = size
        size *= 2
    return fits
def _scale_batch_size():
    return _run_power_scaling(2, 8192)
print(_scale_batch_size())
"""
)

# A loop of neither library, with growing requests and a handler for the error.
OWN_LOOP = """
import torch
size = 1 << 20
try:
    while size < 1 << 30:
        for _ in range(3):
            x = torch.ones(size // 4, device="cuda")
            y = x * 2
            z = (x + y).sum().item()
            del x, y
        best = size
        size *= 2
except torch.OutOfMemoryError:
    pass
print(best >> 20)
"""


def answer(simulate: Simulate, program: str, native: bool = False, **variables: str) -> int:
    run = simulate(program, native=native, capacity=CAPACITY, environment=variables)
    return int(run.check().stdout)


_BY_TORCH: dict[str, int] = {}


def by_torch(simulate: Simulate, program: str) -> int:
    """Returns what the program finds with torch's own allocators, which is the same each time."""
    if program not in _BY_TORCH:
        _BY_TORCH[program] = answer(simulate, program, native=True)
    return _BY_TORCH[program]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ACCELERATE, id="accelerate"),
        pytest.param(LIGHTNING, id="lightning", marks=pytest.mark.all),
    ],
)
def test_a_known_search_ends_at_the_device(simulate: Simulate, program: str) -> None:
    torchs = by_torch(simulate, program)
    # torch keeps more of a small device in blocks that fit no request.
    assert 0.8 * torchs <= answer(simulate, program) <= 2 * torchs


@pytest.mark.parametrize(
    "variables",
    [{}, {"UVMALLOC_THRASHING": "fail"}, {"UVMALLOC_SPILL": "2x"}],
    ids=["default", "fail", "2x"],
)
def test_a_loop_whose_requests_grow_ends_near_the_device(
    simulate: Simulate, variables: dict[str, str]
) -> None:
    torchs = by_torch(simulate, OWN_LOOP)
    assert torchs <= answer(simulate, OWN_LOOP, **variables) <= 2 * torchs


def test_at_a_limit_of_one_nothing_spills(simulate: Simulate) -> None:
    torchs = by_torch(simulate, OWN_LOOP)
    assert answer(simulate, OWN_LOOP, UVMALLOC_SPILL="1x") == torchs


# Starts with a batch that is too large and makes it smaller, in no function with a known name.
SHRINKING = (
    TRAIN
    + """
size = 16384
while True:
    try:
        train(size)
        break
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        size = int(size * 0.8)
print(size)
"""
)


def test_a_loop_that_gets_smaller_ends_near_the_device_where_thrashing_fails(
    simulate: Simulate,
) -> None:
    torchs = by_torch(simulate, SHRINKING)
    assert answer(simulate, SHRINKING, UVMALLOC_THRASHING="fail") <= 2 * torchs


@pytest.mark.parametrize("program", [ACCELERATE, OWN_LOOP], ids=["accelerate", "own"])
def test_without_a_limit_a_search_gets_all_memory(simulate: Simulate, program: str) -> None:
    torchs = by_torch(simulate, program)
    assert answer(simulate, program, UVMALLOC_SPILL="none") > 3 * torchs


ORDINARY = (
    TRAIN
    + """
try:
    print(train(8192))
except torch.OutOfMemoryError:
    print("use a smaller batch")
"""
)


def test_a_program_that_only_tells_of_errors_goes_on_and_is_warned(simulate: Simulate) -> None:
    run = simulate(ORDINARY, capacity=CAPACITY).check()
    assert run.stdout == "8192\n"
    assert (
        len(
            re.findall(
                r"device 0 has too little memory for the program: .* went to the host "
                r"and back, and steps take about \S+ (or more )?times as long",
                run.stderr,
            )
        )
        == 1
    ), run.stderr


def test_the_error_says_how_to_spill(simulate: Simulate) -> None:
    program = TRAIN + "def find_executable_batch_size():\n    train(8192)\n"
    run = simulate(program + "find_executable_batch_size()", capacity=CAPACITY)
    assert run.returncode != 0
    assert "torch.OutOfMemoryError: CUDA out of memory." in run.stderr
    assert "To continue instead, set UVMALLOC_SPILL=none." in run.stderr
