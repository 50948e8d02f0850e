"""uvmalloc.plan_storage: real torch.export programs from an arena, compared with eager runs."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.pytorch.conftest import REFUSED_PRELUDE, Checked, Simulate

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
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


@pytest.fixture
def checked(checked: Checked) -> Checked:
    """Runs programs with torch's own allocators."""
    return functools.partial(checked, native=True)


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
def test_fifty_random_shapes_give_the_bits_of_eager(checked: Checked, device: str) -> None:
    run = checked(
        MODEL
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
    )
    assert run.stdout == "True\n"


def test_a_size_beyond_its_bound_is_refused_or_falls_back(checked: Checked) -> None:
    run = checked(
        MODEL
        + """
name = next(str(size) for size, range in program.range_constraints.items() if range.upper == 24)
large = torch.randn(13, 4, 32)
refusing = uvmalloc.plan_storage(program, upper_bounds={name: 12})
try:
    refusing(large)
except ValueError as error:
    print(str(error).replace(name, "SIZE"))
same(refusing, model, torch.randn(12, 3, 32))
falling = uvmalloc.plan_storage(program, upper_bounds={name: 12}, beyond_bound="fall back")
same(falling, model, large)
assert falling.fall_backs == 1
same(falling, model, torch.randn(2, 3, 32))
assert falling.fall_backs == 1
try:
    falling(torch.randn(25, 4, 32))  # the program itself takes at most 24
except AssertionError as error:
    print(error)
try:
    uvmalloc.plan_storage(program, upper_bounds={name: -1})
except ValueError as error:
    print(str(error).replace(name, "SIZE"))
"""
    )
    lines = run.stdout.splitlines()
    assert lines[0] == "plan_storage: the size 'SIZE' is 13; accepted: at most 12"
    assert lines[1] == "Guard failed: x.size()[0] <= 24"
    assert lines[2].startswith("plan_storage: the upper bound of 'SIZE' is -1; accepted: at least")


def test_views_and_writes_in_place_are_those_of_eager(checked: Checked) -> None:
    checked("""
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
""")


def test_what_cannot_be_planned_is_named(checked: Checked) -> None:
    run = checked("""
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
for options in ((Model(),), (program, 64), (program, {name: "8"})):
    try:
        uvmalloc.plan_storage(options[0], upper_bounds=dict(enumerate(options)).get(1))
    except (TypeError, ValueError) as error:
        print(type(error).__name__, str(error).replace(name, "SIZE"))
planned = uvmalloc.plan_storage(program, upper_bounds={name: 8})
assert torch.equal(planned(torch.ones(8)), torch.full((8,), 2.0))
try:
    planned(torch.ones(8), 5)
except ValueError as error:
    print(str(error).splitlines()[0])
""")
    lines = run.stdout.splitlines()
    assert lines[0].startswith("plan_storage: the symbolic size 'SIZE' has no upper bound.")
    assert lines[1] == "plan_storage: the program has no symbolic size 'zz'; it has: SIZE"
    assert lines[2] == "plan_storage: beyond_bound is 'explode'; accepted: refuse, fall back"
    assert lines[3:6] == [
        "TypeError plan_storage: the program is a Model; accepted: what torch.export.export(model, "
        "inputs) returns",
        "TypeError plan_storage: upper_bounds is 64; accepted: sizes by name, for example "
        '{"s0": 64}',
        "ValueError plan_storage: the upper bound of 'SIZE' is '8'; accepted: a whole number",
    ]
    assert lines[6].startswith("Trying to flatten user inputs")


def test_a_part_without_gradients_runs_in_its_place(checked: Checked) -> None:
    checked("""
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
""")


def test_a_branch_is_named(checked: Checked) -> None:
    run = checked("""
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
try:
    uvmalloc.plan_storage(export(Model(), (torch.randn(4),)))
except ValueError as error:
    print(error)
""")
    assert run.stdout == "plan_storage: the program has a part that is a 'cond'\n"


def test_arguments_are_taken_as_the_program_takes_them(checked: Checked) -> None:
    """Arguments are taken by position, because torch.export gives its own names to values."""
    checked("""
sequence = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
x = torch.randn(4, 8)
same(uvmalloc.plan_storage(export(sequence, (x,))), sequence, x)
for name in ("input", "type", "max", "self_", "torch", "device", "pytree", "add"):
    found = {}
    text = f"class M(torch.nn.Module):\\n def forward(self, {name}):\\n  return {name} * 2"
    exec("import torch\\n" + text, found)
    same(uvmalloc.plan_storage(export(found["M"](), (x,))), found["M"](), x)

class Nested(torch.nn.Module):
    def forward(self, input, pair, *, scale=None, options):
        first, (second, none) = pair
        return {"sum": (input + first + second) * options["k"], "rest": [none, input, 3]}
pair, options = (x + 1, [x + 2, None]), {"k": x, "unused": 2}
program = export(Nested(), (x, pair), {"scale": None, "options": options})
planned, module = uvmalloc.plan_storage(program), program.module()
found, wanted = (each(x, pair, options=dict(reversed(options.items())), scale=None)
                 for each in (planned, module))
assert torch.equal(found["sum"], wanted["sum"]) and found["rest"][0::2] == [None, 3]
assert found["rest"][1] is x
for wrong in ({}, {"scale": None}, {"scale": None, "options": {"k": x}}):
    errors = []
    for each in (planned, module):
        try:
            each(x, pair, **wrong)
        except Exception as error:
            errors.append((type(error), str(error)))
    assert len(errors) == 2 and errors[0] == errors[1], errors
""")


def test_a_run_checks_the_guards_of_the_program(checked: Checked) -> None:
    run = checked("""
class Parity(torch.nn.Module):
    def forward(self, x, y, k):
        x = (x * 2 if x.shape[0] % 2 == 0 else x * 3) + k
        return (x + 1) * (y if x.shape[0] == y.shape[0] else y.sum())
auto = {0: Dim.AUTO}
program = export(Parity(), (torch.ones(4, 3), torch.ones(4, 3), 2),
                 dynamic_shapes=(auto, auto, None))
bounds = {str(size): 64 for size in program.range_constraints}
planned = uvmalloc.plan_storage(program, upper_bounds=bounds)
ones = torch.ones
same(planned, Parity(), ones(6, 3), ones(6, 3), 2)
for wrong in ((ones(5, 3), ones(5, 3), 2), (ones(4, 3), ones(6, 3), 2), (ones(4, 3), ones(4, 3), 3),
              (ones(4, 7), ones(4, 3), 2)):
    for run in (program.module(), planned):
        try:
            run(*wrong)
        except AssertionError as error:
            print(error)
same(planned, Parity(), ones(4, 3), ones(4, 3), 2)
""")
    lines = run.stdout.splitlines()
    assert len(lines) == 8 and lines[0::2] == lines[1::2]
    assert all(line.startswith("Guard failed: ") for line in lines)


def test_every_write_of_the_program_is_seen_after_a_run(checked: Checked) -> None:
    """Writes to inputs, also in containers, to buffers, and to views of them, decomposed or not."""
    checked("""
class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(2))
        self.register_buffer("last", torch.zeros(4), persistent=False)
    def forward(self, x, caches):
        keys, values = caches["keys"], caches["values"]
        keys[1:].add_((x + 1).relu())
        values.copy_(keys * 2)
        self.steps[0] += 1
        self.last.copy_((x * 3).relu().sum(0))
        return (keys + values) * self.steps[0], values

def arguments():
    return torch.ones(2, 4), {"keys": torch.zeros(3, 4), "values": torch.zeros(3, 4)}
for decompose in (lambda each: each, lambda each: each.run_decompositions()):
    planned = uvmalloc.plan_storage(decompose(export(Cache(), arguments())))
    module = decompose(export(Cache(), arguments())).module()
    states = [arguments(), arguments()]
    for _ in range(3):
        found, wanted = (run(*state) for run, state in zip((planned, module), states))
        assert all(torch.equal(*pair) for pair in zip(found, wanted))
        for name in ("keys", "values"):
            assert torch.equal(states[0][1][name], states[1][1][name]), name
        assert found[1] is states[0][1]["values"]
    buffers = dict(planned._module.named_buffers())
    assert buffers["steps"].tolist() == [3, 0]
    assert all(torch.equal(buffers[name], each) for name, each in module.named_buffers())
""")


def test_the_callers_modes_do_not_stay_in_the_arena(checked: Checked) -> None:
    checked("""
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.mm(torch.relu(x * 2 + 1), x).sin() / 3
x = torch.randn(4, 4)
program = export(Model(), (x,))
no_grad, infer = torch.no_grad, torch.inference_mode
def cast():
    return torch.autocast("cpu", torch.bfloat16)
for modes in ((infer, no_grad, infer), (cast, no_grad, cast, cast), (no_grad, cast, cast, infer)):
    planned, module = uvmalloc.plan_storage(program), program.module()
    for mode in modes:
        with mode():
            found, wanted = planned(x), module(x)
        assert torch.equal(found, wanted) and found.dtype == wanted.dtype
        assert found.is_inference() == wanted.is_inference()
        other = planned(x.double()), module(x.double())
        assert torch.equal(*other) and other[0].dtype == torch.float64
""")


def test_results_lie_as_those_of_the_module(checked: Checked) -> None:
    """Strides of inputs are not part of a program; views of one tensor stay its views."""
    checked("""
class Model(torch.nn.Module):
    def forward(self, x):
        y = (x + 1).sin()
        z = (y * 2).relu()
        w = torch.relu(x * 3)
        w.unsqueeze_(0)
        return y[:, ::2], y[0], z.expand(2, 4, 4), w * 2
program = export(Model(), (torch.randn(4, 4),))
planned, module = uvmalloc.plan_storage(program), program.module()
x = torch.randn(4, 4)
for given in (x, x.t(), x, torch.randn(4, 8)[:, ::2], x.t()):
    found, wanted = planned(given), module(given)
    for one, other in zip(found, wanted):
        assert torch.equal(one, other) and one.stride() == other.stride()
    found[0].fill_(7)
    assert found[1][0] == 7
""")


def test_sizes_by_way_of_fractions_have_places(checked: Checked) -> None:
    checked("""
import math
class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.nn.functional.interpolate(x, scale_factor=1.5, recompute_scale_factor=True)
        half = torch.ones(math.ceil(x.shape[2] / 2), round(x.shape[3] * 0.7)).cumsum(0).sin()
        return (y * 2).relu().sum() + half.sum()
shapes = {"x": {2: Dim.AUTO, 3: Dim.AUTO}}
program = export(Model(), (torch.randn(1, 2, 8, 12),), dynamic_shapes=shapes)
bounds = {str(size): 40 for size in program.range_constraints}
planned = uvmalloc.plan_storage(program, upper_bounds=bounds)
assert planned.arena_bytes >= 2 * (2 * 60 * 60 * 4), "two results of the interpolation"
for size in ((32, 40), (7, 9), (4, 5)):
    same(planned, Model(), torch.randn(1, 2, *size))
""")


def test_sizes_that_depend_on_elements_have_memory_of_their_own(checked: Checked) -> None:
    checked("""
class Model(torch.nn.Module):
    def forward(self, x):
        places = torch.nonzero(x > 0)
        return (places * 2).sum() + (x * 2).relu().sum()
planned = uvmalloc.plan_storage(export(Model(), (torch.randn(40),)))
for fill in (0.0, 1.0, 0.0):
    same(planned, Model(), torch.full((40,), fill))
""")


def test_runs_take_turns_between_threads_and_between_streams(checked: Checked) -> None:
    run = checked(
        """
import threading
from unittest import mock
class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(8):
            x = torch.sin(x * 3) + 1
        return x
x = torch.randn(64, 64, device=device)
planned = uvmalloc.plan_storage(export(Model(), (x,)))
inputs = [torch.randn(64, 64, device=device) for _ in range(4)]
wanted = [Model()(each) for each in inputs]
wrong = []
def work(number):
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(50):
            if not torch.equal(planned(inputs[number]), wanted[number]):
                wrong.append(number)
torch.cuda.synchronize()
__import__("sys").setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for each in threads: each.start()
for each in threads: each.join()
assert not wrong, wrong

calls = []
wait, record = torch.cuda.Stream.wait_event, torch.Tensor.record_stream
with (mock.patch.object(torch.cuda.Stream, "wait_event",
                        lambda self, event: (calls.append("wait"), wait(self, event))),
      mock.patch.object(torch.Tensor, "record_stream",
                        lambda self, stream: (calls.append("keep"), record(self, stream)))):
    planned = uvmalloc.plan_storage(export(Model(), (x,)))
    side = torch.cuda.Stream()
    planned(x)
    planned(x)
    assert calls == []
    with torch.cuda.stream(side):
        planned(x)
        assert calls == ["wait", "keep"]
        planned(x)
    planned(x)
    assert calls == ["wait", "keep"] * 2
    with torch.cuda.stream(torch.cuda.ExternalStream(2)):  # per-thread: another one in each thread
        planned(x)
        planned(x)
    assert calls == ["wait", "keep"] * 4
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = planned(x)
graph.replay()
torch.cuda.synchronize()
assert torch.equal(captured, Model()(x))
same(planned, Model(), x)
print("ok")
""",
        "cuda",
    )
    assert run.stdout == "ok\n"


def test_the_arena_ends_with_the_plan(checked: Checked) -> None:
    checked(
        """
import gc
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x * 3) + 1
gc.disable()
x = torch.randn(1 << 20, device=device)
planned = uvmalloc.plan_storage(export(Model(), (x,)))
before = torch.cuda.memory_allocated()
planned(x)
assert torch.cuda.memory_allocated() >= before + planned.arena_bytes > before
del planned
assert torch.cuda.memory_allocated() == before
""",
        "cuda",
    )


ROWS_OF_A_MIB = (
    PRELUDE
    + REFUSED_PRELUDE
    + """
class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(4):
            x = torch.sin(x * 3) + torch.relu(x)
        return x.sum(1)
MIB = 1 << 20
rows = torch.randn(64, MIB // 4, device="cuda")
sizes = {"x": {0: Dim("n", min=1, max=64)}}
planned = uvmalloc.plan_storage(export(Model(), (rows,), dynamic_shapes=sizes))
before = torch.cuda.memory_allocated()
"""
)


def test_sizes_that_vary_take_memory_for_what_runs_have_used(simulate: Simulate) -> None:
    simulate(
        ROWS_OF_A_MIB
        + """
assert planned.held_bytes == 0 and planned.arena_bytes >= 128 * MIB
same(planned, Model(), rows[:1])
small = planned.held_bytes
assert small <= 12 * MIB and torch.cuda.memory_allocated() - before == small, small
for count in (16, 5, 64, 1, 33):
    same(planned, Model(), rows[:count])
assert planned.held_bytes == -(-planned.arena_bytes // (2 * MIB)) * 2 * MIB
side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
planned.release()
assert planned.held_bytes == 0 and torch.cuda.memory_allocated() == before
torch.cuda.synchronize()
with torch.cuda.stream(side):
    found = planned(rows[:7])
    assert torch.equal(found, Model()(rows[:7]))
    del found
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    captured = planned(rows[:40])
    refused(RuntimeError, "accepted: no capture", planned.release)
rows.mul_(2)
graph.replay()
assert torch.equal(captured, Model()(rows[:40]))
del graph, captured, planned
torch.cuda.synchronize()
assert torch.cuda.memory_allocated() == before, torch.cuda.memory_allocated() - before
"""
    ).check()


def test_a_run_for_which_memory_is_short_leaves_the_plan_usable(simulate: Simulate) -> None:
    simulate(
        ROWS_OF_A_MIB
        + """
held = torch.empty(96 * MIB, dtype=torch.uint8, device="cuda")
refused(torch.OutOfMemoryError, "memory", planned, rows)
same(planned, Model(), rows[:3])
del held
same(planned, Model(), rows[:20])
""",
        budget="256MiB",
    ).check()


def test_a_forked_child_may_drop_a_plan_and_end(simulate: Simulate) -> None:
    simulate(
        ROWS_OF_A_MIB
        + """
import os, sys
planned(rows[:2])
torch.cuda.synchronize()
for ends in (False, True):
    child = os.fork()
    if child == 0:
        if not ends:
            del planned
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, ends
same(planned, Model(), rows[:3])
"""
    ).check()


def test_a_plan_of_sizes_that_vary_joins_the_open_group(simulate: Simulate) -> None:
    simulate(
        ROWS_OF_A_MIB
        + """
with uvmalloc.group("plan") as group:
    same(planned, Model(), rows[:2])
same(planned, Model(), rows[:9])
assert group.figures().bytes >= planned.held_bytes
group.sleep()
same(planned, Model(), rows[:9])
"""
    ).check()


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.parametrize("name", ["gpt2", "resnet18", "llama"])
def test_a_real_model_gives_the_bits_of_eager(checked: Checked, name: str) -> None:
    checked(
        f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from bench.pipelines.models import export, random_input
model, largest, program = export({name!r}, "cpu")
planned = uvmalloc.plan_storage(program)
assert planned.arena_bytes <= 1.02 * planned.lower_bound_bytes
source = random.Random(2)
same(planned, model, largest)
for _ in range(5):
    same(planned, model, random_input({name!r}, source))
assert planned.fall_backs == 0
""",
        timeout_seconds=600,
    )
