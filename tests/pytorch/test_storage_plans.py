"""uvmalloc.plan_storage: real torch.export programs, run from an arena, against eager."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch.conftest import Simulate

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import random, torch, uvmalloc
from torch.export import Dim, export
device = "cuda" if "cuda" in __import__("sys").argv else "cpu"
torch.manual_seed(0)

def same(planned, model, *inputs):
    with torch.no_grad():
        wanted = model(*inputs)
    found = planned(*inputs)
    assert torch.equal(found, wanted), (found - wanted).abs().max()
    assert found.stride() == wanted.stride()
    return found
"""

MODEL = """
class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 3 * width)
        self.down = torch.nn.Linear(3 * width, width)
        self.drop = torch.nn.Dropout(0.1)
    def forward(self, x):
        h = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + self.drop(self.down(h))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(32) for _ in range(4))
        self.head = torch.nn.Linear(32, 10)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        y = torch.relu(x) * 0.5 + x.transpose(0, 1).contiguous().transpose(0, 1)
        return self.head(y).flatten(0, 1)

model = Model().eval().to(device)
shapes = {"x": {0: Dim("n", min=1, max=24), 1: Dim("length", min=2, max=40)}}
program = export(model, (torch.randn(3, 5, 32, device=device),), dynamic_shapes=shapes)
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fifty_random_shapes_give_the_bits_of_eager(simulate: Simulate, device: str) -> None:
    run = simulate(
        HEAD
        + MODEL
        + """
planned = uvmalloc.plan_storage(program)
source = random.Random(1)
kept = []
for _ in range(50):
    x = torch.randn(source.randint(1, 24), source.randint(2, 40), 32, device=device)
    found = same(planned, model, x)
    kept.append((found, found.clone()))
assert all(torch.equal(*pair) for pair in kept), "what was returned is not written again"
assert planned.lower_bound_bytes <= planned.arena_bytes <= 1.02 * planned.lower_bound_bytes
x = torch.randn(24, 40, 32, device=device)
hits = planned.view_hits
for _ in range(3):
    same(planned, model, x)
assert planned.view_hits >= hits + 2
print(planned.view_misses <= 51)
""",
        device,
        timeout_seconds=300,
    ).check()
    assert run.stdout == "True\n"


def test_a_size_beyond_its_bound_is_refused_or_falls_back(simulate: Simulate) -> None:
    run = simulate(
        HEAD
        + MODEL
        + """
large = torch.randn(25, 4, 32)
refusing = uvmalloc.plan_storage(program)
try:
    refusing(large)
except ValueError as error:
    print(error)
same(refusing, model, torch.randn(2, 3, 32))
falling = uvmalloc.plan_storage(program, beyond_bound="fall back")
same(falling, model, large)
assert falling.fall_backs == 1
same(falling, model, torch.randn(2, 3, 32))
assert falling.fall_backs == 1
""",
        native=True,
    ).check()
    assert " is 25; accepted: " in run.stdout
    assert " to 24\n" in run.stdout


def test_views_and_writes_in_place_are_those_of_eager(simulate: Simulate) -> None:
    simulate(
        HEAD
        + """
class Model(torch.nn.Module):
    def forward(self, x):
        a = x + 1
        view = a[1:]            # of an intermediate
        view.mul_(3)            # written in place
        b = a.reshape(-1) + 1
        c, d = torch.chunk(b, 2)
        e = torch.cat([d, c]).view(x.shape).t()
        values, places = torch.sort(e, dim=0)
        return values, places.float() + e.sum(), x * 2, e

model = Model()
shapes = {"x": {0: 2 * Dim("k", min=1, max=30)}}
program = export(model, (torch.randn(4, 6),), dynamic_shapes=shapes)
planned = uvmalloc.plan_storage(program)
for rows in (4, 60, 8, 4, 60):
    x = torch.randn(rows, 6)
    wanted, found = model(x.clone()), planned(x.clone())
    assert len(found) == 4
    assert all(torch.equal(*pair) for pair in zip(wanted, found))
""",
        native=True,
    ).check()


def test_what_cannot_be_planned_is_named(simulate: Simulate) -> None:
    run = simulate(
        HEAD
        + """
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x + 1)
program = export(Model(), (torch.randn(3),), dynamic_shapes={"x": {0: Dim("n")}})
name = str(program.graph_signature and next(iter(program.range_constraints)))
for options in ({}, {"upper_bounds": {"zz": 4}}, {"beyond_bound": "explode"}):
    try:
        uvmalloc.plan_storage(program, **options)
    except ValueError as error:
        print(str(error).replace(name, "SIZE"))
planned = uvmalloc.plan_storage(program, upper_bounds={name: 8})
assert torch.equal(planned(torch.ones(8)), torch.full((8,), 2.0))
try:
    planned(torch.ones(8), 5)
except TypeError:
    print("TypeError")
""",
        native=True,
    ).check()
    lines = run.stdout.splitlines()
    assert lines[0].startswith("plan_storage: the symbolic size 'SIZE' has no upper bound.")
    assert lines[1] == "plan_storage: the program has no symbolic size 'zz'; it has: SIZE"
    assert lines[2] == "plan_storage: beyond_bound is 'explode'; accepted: refuse, fall back"
    assert lines[3:] == ["TypeError"]


def test_a_part_without_gradients_runs_in_its_place(simulate: Simulate) -> None:
    simulate(
        HEAD
        + """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(6))
    def forward(self, x):
        with torch.no_grad():
            a = (x + 1).sin()
            b = a * self.scale
        return (a + b).relu() * self.scale, b

model = Model()
shapes = {"x": {0: Dim("n", min=1, max=30)}}
program = export(model, (torch.randn(4, 6),), dynamic_shapes=shapes)
assert "wrap_with_set_grad_enabled" in str(program.graph)
planned = uvmalloc.plan_storage(program)
assert planned.arena_bytes > 0
for rows in (30, 1, 7):
    x = torch.randn(rows, 6)
    assert all(torch.equal(*pair) for pair in zip(planned(x), model(x), strict=True))
""",
        native=True,
    ).check()


def test_a_branch_is_named(simulate: Simulate) -> None:
    run = simulate(
        HEAD
        + """
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
try:
    uvmalloc.plan_storage(export(Model(), (torch.randn(4),)))
except ValueError as error:
    print(error)
""",
        native=True,
    ).check()
    assert run.stdout == "plan_storage: the program has a part that is a 'cond'\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "gpt2", pytest.param("llama", marks=pytest.mark.all)])
def test_a_real_model_gives_the_bits_of_eager(simulate: Simulate, name: str) -> None:
    simulate(
        HEAD
        + f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from bench.storage.models import export, random_input
model, largest, program = export({name!r}, "cpu")
planned = uvmalloc.plan_storage(program)
assert planned.arena_bytes <= 1.02 * planned.lower_bound_bytes
source = random.Random(2)
same(planned, model, largest)
for _ in range(5):
    same(planned, model, random_input({name!r}, source))
assert planned.fall_backs == 0
""",
        native=True,
        timeout_seconds=600,
    ).check()
