"""Programs that need more memory than the device has, while uvmalloc plans their moves."""

from __future__ import annotations

import json
import statistics
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.pytorch.conftest import Simulate, SimulatedRun

# Twelve layers of 2 MiB each, with momentum: 36 MiB that last, and activations.
TRAINING = """
import sys, json, torch
torch.manual_seed(0)
torch.set_num_threads(1)
width, layers = 724, 12
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
losses = []
for step in range(int(sys.argv[1])):
    x = torch.randn(64, width).to("cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
print(json.dumps(losses))
"""
STEPS = "8"


def losses(run: SimulatedRun) -> list[str]:
    found = json.loads(run.check().stdout)
    assert len(found) > 0
    return found


_ENOUGH: dict[tuple[str, str], list[str]] = {}


def losses_with_enough(
    simulate: Simulate, program: str = TRAINING, steps: str = STEPS
) -> list[str]:
    """Returns the losses of a run with enough memory, which are the same each time."""
    if (program, steps) not in _ENOUGH:
        _ENOUGH[program, steps] = losses(simulate(program, steps, capacity="1GiB"))
    return _ENOUGH[program, steps]


def test_nothing_is_planned_where_all_fits(simulate: Simulate) -> None:
    run = simulate(TRAINING, STEPS, capacity="1GiB").check()
    assert set(run.report["live_plan"].values()) == {0}
    assert run.sim["evicted_chunks"] == 0


@pytest.mark.parametrize("policy", ["auto", "planned", "lru"])
def test_planned_moves_change_no_result(simulate: Simulate, policy: str) -> None:
    short = simulate(TRAINING, STEPS, capacity="48MiB", policy=policy)
    assert losses(short) == losses_with_enough(simulate)
    plan = short.report["live_plan"]
    assert plan["kernels"] > 100
    assert plan["brought_pages"] > 0
    assert plan["evicted_pages"] > 0


HINT_CALLS = (
    "advise", "prefetch", "discard", "prefetch_batch", "discard_batch",
    "discard_and_prefetch_batch",
)  # fmt: skip
BATCHES = "cuMemPrefetchBatchAsync,cuMemDiscardAndPrefetchBatchAsync"


def hint_calls(run: SimulatedRun) -> int:
    calls = run.check().report["driver_calls"]
    return sum(calls.get(name, 0) for name in HINT_CALLS)


def test_batches_save_calls_and_change_no_result(simulate: Simulate) -> None:
    steps = "16"
    batched = simulate(TRAINING, steps, capacity="48MiB")
    single = simulate(
        TRAINING, steps, capacity="48MiB", environment={"UVMSIM_REFUSED_CALLS": BATCHES}
    )
    assert losses(batched) == losses(single) == losses_with_enough(simulate, steps=steps)
    assert hint_calls(batched) < 0.9 * hint_calls(single)
    assert batched.report["driver_calls"]["prefetch_batch"] > 10
    assert single.report["live_plan"]["brought_pages"] > 0
    assert single.report["driver_calls"].get("prefetch_batch", 0) <= 1, "no second call"


def test_refused_discards_change_no_result(simulate: Simulate) -> None:
    refused = f"{BATCHES},cuMemDiscardBatchAsync"
    run = simulate(TRAINING, STEPS, capacity="48MiB", environment={"UVMSIM_REFUSED_CALLS": refused})
    assert losses(run) == losses_with_enough(simulate)
    assert run.report["live_plan"]["discarded_pages"] > 0, "the plan has tried"


def test_a_driver_without_batches_gets_single_calls(simulate: Simulate) -> None:
    run = simulate(TRAINING, STEPS, capacity="48MiB", driver_version="12.8")
    assert losses(run) == losses_with_enough(simulate)
    assert run.report["live_plan"]["brought_pages"] > 0
    assert not {"prefetch_batch", "discard_batch"} & run.report["driver_calls"].keys()


def test_the_driver_alone_plans_nothing(simulate: Simulate) -> None:
    run = simulate(TRAINING, "3", capacity="48MiB", policy="driver").check()
    assert set(run.report["live_plan"].values()) == {0}
    assert run.sim["evicted_chunks"] > 0


def test_a_learned_step_faults_less_than_the_driver(simulate: Simulate) -> None:
    faults = {
        policy: simulate(TRAINING, STEPS, capacity="48MiB", policy=policy).check().sim
        for policy in ("driver", "auto")
    }
    assert faults["auto"]["faults_device"] < 0.7 * faults["driver"]["faults_device"]


# Memory of the driver stands for another program's memory: no figure of uvmalloc counts it.
BESIDE_OTHERS = TRAINING.replace(
    "width, layers",
    """
import ctypes
torch.zeros(1, device="cuda")
address = ctypes.c_uint64()
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(24 << 20)) == 0
width, layers""",
    1,
)


def test_memory_of_another_program_is_not_planned_with(simulate: Simulate) -> None:
    beside = {
        policy: simulate(BESIDE_OTHERS, STEPS, capacity="72MiB", policy=policy)
        for policy in ("driver", "auto")
    }
    assert losses(beside["auto"]) == losses_with_enough(simulate)
    faults = {policy: run.check().sim["faults_device"] for policy, run in beside.items()}
    assert faults["auto"] < 0.7 * faults["driver"]


# Another program takes memory after ours has filled the device. The driver's figure of free memory
# does not change then, but a driver of CUDA 13.4 reports where the pages are.
TAKEN_LATER = """
import ctypes, json, sys, torch, uvmalloc
torch.set_num_threads(1)
weights = [torch.full((1 << 20,), float(i), device="cuda") for i in range(24)]
def steps(count):
    for _ in range(count):
        for weight in weights:
            weight.mul_(1.5).div_(1.5)
    torch.cuda.synchronize()
steps(40)
address = ctypes.c_uint64()
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]) << 20)) == 0
engine = ctypes.CDLL("libuvmsim.so")
def faults():
    counters = (ctypes.c_uint64 * 64)()
    engine.uvmsim_get_counters(counters)
    return counters[12]
before = faults()
of_parts = []
for _ in range(20):
    part = faults()
    steps(8)
    of_parts.append(faults() - part)
assert all(torch.equal(weight.cpu(), torch.full((1 << 20,), float(i)))
           for i, weight in enumerate(weights))
print(json.dumps([faults() - before, uvmalloc.stats()["live_plan"]["checked_pages"], of_parts]))
"""


def test_memory_that_another_program_takes_later_is_seen(simulate: Simulate) -> None:
    faults = {}
    for version in ("13.0", "13.5"):
        run = simulate(TAKEN_LATER, "24", capacity="64MiB", driver_version=version)
        faults[version], checked, _ = json.loads(run.check().stdout)
        assert (checked > 0) == (version == "13.5")
        assert ("compared" in run.report) == (version == "13.5")
    compared = run.report["compared"]
    assert 0 < compared["real_bytes"] <= compared["believed_bytes"] < 64 << 20
    assert faults["13.5"] < 0.05 * faults["13.0"]


def test_a_little_memory_that_another_program_takes_is_seen_too(simulate: Simulate) -> None:
    run = simulate(TAKEN_LATER, "4", capacity="64MiB", driver_version="13.5")
    faults, _, of_parts = json.loads(run.check().stdout)
    assert faults > 0, "until the pages are compared"
    assert statistics.median(of_parts) == 0


LIMITED = TRAINING.replace(
    "    losses.append", "    if step == 5: torch.cuda.set_per_process_memory_fraction(0.4)\n"
    "    losses.append"
)  # fmt: skip


def test_a_limit_that_is_lowered_while_a_program_runs_is_obeyed(simulate: Simulate) -> None:
    longer = str(int(STEPS) + 8)
    runs = {
        text: simulate(text, longer, capacity="64MiB", policy="planned")
        for text in (TRAINING, LIMITED)
    }
    assert losses(runs[LIMITED]) == losses_with_enough(simulate, TRAINING, longer)
    evicted = {text: run.report["live_plan"]["evicted_pages"] for text, run in runs.items()}
    assert evicted[LIMITED] > evicted[TRAINING] + 50


CAPTURED = """
import sys, json, torch
torch.manual_seed(0)
torch.set_num_threads(1)
width, layers = 724, 12
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
x = torch.zeros(64, width, device="cuda")
def step():
    loss = model(x).square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    return loss
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(2):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
losses = []
for _ in range(int(sys.argv[1])):
    x.copy_(torch.randn(64, width))
    graph.replay()
    losses.append(loss.item().hex())
print(json.dumps(losses))
"""


@pytest.mark.parametrize("capacity", ["48MiB", pytest.param("80MiB", marks=pytest.mark.all)])
def test_pages_of_a_captured_step_come_before_the_parts_of_its_replays(
    simulate: Simulate, capacity: str
) -> None:
    runs = {
        policy: simulate(CAPTURED, STEPS, capacity=capacity, policy=policy)
        for policy in ("driver", "auto")
    }
    for run in runs.values():
        assert losses(run) == losses_with_enough(simulate, CAPTURED)
    launches = [runs[policy].sim["graph_launches"] for policy in ("driver", "auto")]
    assert launches[0] == int(STEPS)
    assert launches[1] > 8 * int(STEPS), "a part uses at most an eighth of the device"
    assert runs["auto"].report["live_plan"]["brought_pages"] > 0
    # Those of the steps before the capture, when memory is not known to be short.
    assert runs["auto"].sim["faults_device"] < 0.1 * runs["driver"].sim["faults_device"]


# Its results are smaller than the blocks that the log of uses knows.
SMALL_RESULTS = """
import torch
torch.set_num_threads(1)
weights = [torch.full((1024, 1024), 2e-3 + 1e-5 * i, device="cuda") for i in range(16)]
x = torch.ones(8, 1024, device="cuda")
def forward():
    y = x
    for weight in weights:
        y = y @ weight
    return y.sum(), y.max(), y[0, 0] * 1
forward()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph(keep_graph=True)
with torch.cuda.graph(graph):
    results = forward()
for _ in range(2):
    graph.instantiate()
    for _ in range(4):
        graph.replay()
        print([each.item().hex() for each in results])
"""


def test_a_graph_with_small_results_is_divided_at_each_instantiation(simulate: Simulate) -> None:
    short = simulate(SMALL_RESULTS, capacity="48MiB", environment={"UVMALLOC_LOG": "info"})
    ample = simulate(SMALL_RESULTS, capacity="1GiB").check()
    assert short.check().stdout == ample.stdout
    assert short.stderr.count("it is launched in") == 2
    assert short.sim["graph_launches"] > 8 * ample.sim["graph_launches"]


AFTER_A_FAILURE = SMALL_RESULTS.replace("graph = torch", """
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        forward()
        torch.cuda.synchronize()
except RuntimeError as error:
    print(type(error).__name__)
graph = torch""")  # fmt: skip


def test_moves_are_planned_after_a_capture_that_failed(simulate: Simulate) -> None:
    runs = {
        program: simulate(program, capacity="48MiB").check()
        for program in (SMALL_RESULTS, AFTER_A_FAILURE)
    }
    assert runs[AFTER_A_FAILURE].stdout == "AcceleratorError\n" + runs[SMALL_RESULTS].stdout
    kernels = [run.report["live_plan"]["kernels"] for run in runs.values()]
    assert kernels[1] >= kernels[0]


BESIDE_LAUNCHES = """
import ctypes, sys, torch
from bench.simulated_counters import load_simulator
if sys.argv[1] == "torch first":
    torch.zeros(1, device="cuda")
runtime = ctypes.CDLL("libcudart.so.13")
block = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(2 << 20)) == 0
weights = [torch.zeros(724, 724, device="cuda") for _ in range(40)]
for weight in weights:
    weight.add_(1)
torch.cuda._sleep(10)
count = load_simulator().uvmsim_call_count
count.restype = ctypes.c_uint64
launches = sum(count(name) for name in (b"cudaLaunchKernel", b"__cudaLaunchKernel"))
print(launches, count(b"cudaGetFuncBySymbol") + count(b"cuKernelGetParamInfo"))
"""


@pytest.mark.parametrize("order", ["torch first", "torch last"])
def test_launches_are_not_looked_at_where_operators_say_their_uses(
    simulate: Simulate, order: str
) -> None:
    variables = {"UVMALLOC_CUDA": "1"}
    run = simulate(BESIDE_LAUNCHES, order, capacity="48MiB", environment=variables).check()
    assert run.stdout == "1 0\n"
    assert run.report["live_plan"]["kernels"] > 0
    assert run.report["cuda_calls"]["cudaMalloc"]["served"] == 1


CHANGING = """
import json, torch
torch.manual_seed(0)
torch.set_num_threads(1)
weights = [torch.randn(724, 724).to("cuda") for _ in range(24)]
x = torch.randn(64, 724).to("cuda")
sums = []
for step in range(12):
    # Forward, then backward, then every second layer: the sequence changes twice.
    order = weights if step < 4 else weights[::-1] if step < 8 else weights[::2]
    y = x
    for weight in order:
        y = torch.tanh(y @ weight)
        weight.mul_(0.999)
    sums.append(y.sum().item().hex())
print(json.dumps(sums))
"""


def test_a_program_that_changes_its_step_computes_the_same(simulate: Simulate) -> None:
    enough = simulate(CHANGING, capacity="1GiB")
    short = simulate(CHANGING, capacity="32MiB")
    assert losses(short) == losses(enough)
    assert short.report["live_plan"]["kernels"] > 100


def test_two_programs_on_one_device_take_turns(simulate: Simulate) -> None:
    def run(_: int) -> SimulatedRun:
        return simulate(
            TRAINING, "40", capacity="80MiB", policy="auto", environment={"UVMALLOC_SHARE": "1"}
        )

    alone = run(0)
    assert alone.sim["evicted_chunks"] == 0, "the program does not fit alone"
    assert alone.report["shared_devices"][0]["waited_ns"] == 0
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(run, range(2)))
    for each in both:
        assert losses(each) == losses(alone)
        assert "programs use" in each.stderr
        assert "they take turns of 0.1 s" in each.stderr
        shared = each.report["shared_devices"][0]
        assert shared["turns"] >= 4
        assert shared["waited_ns"] > 0


TRACED = """
import torch
from torch.export import Dim
class Model(torch.nn.Module):
    def forward(self, x, y):
        both = torch.cat((x, torch.sin(x * 3) + y))
        return torch.nn.functional.linear(both, x[:8])
weights = [torch.ones(4 << 20, device='cuda') for _ in range(6)]
for weight in weights:
    weight.add_(1)
x, y = torch.randn(64, 512, device='cuda'), torch.randn(64, 512, device='cuda')
rows = Dim('rows', min=8, max=4096)
program = torch.export.export(Model(), (x, y), dynamic_shapes={'x': {0: rows}, 'y': {0: rows}})
compiled = torch.compile(Model(), dynamic=True, backend='eager')
made = []
torch.compiler.reset()
for count in (64, 65, 66, 80):
    given = (torch.cat((x, y))[:count].contiguous(), torch.ones(count, 512, device='cuda'))
    assert torch.equal(compiled(*given), Model()(*given))
    assert torch.equal(program.module()(*given), Model()(*given))
    made.append(torch._dynamo.utils.counters['stats']['unique_graphs'])
print(made[-1] - made[0])
"""


def test_a_tracer_sees_sizes_that_vary_while_memory_is_short(simulate: Simulate) -> None:
    """Operators are watched then, also those on tensors that have no memory yet."""
    run = simulate(TRACED, capacity="64MiB").check()
    assert run.stdout == "0\n"
    assert run.report["live_plan"]["kernels"] > 0


NESTED = """
import torch
weights = [torch.ones(4 << 20, device='cuda') for _ in range(6)]
for weight in weights:
    weight.add_(1)
parts = [torch.ones(rows, 8, device='cuda') for rows in (3, 5)]
nested = torch.nested.nested_tensor(parts, layout=torch.strided)
print([each.sum().item() for each in (nested * 2 + nested).unbind()])
"""


def test_nested_tensors_are_watched_while_memory_is_short(simulate: Simulate) -> None:
    run = simulate(NESTED, capacity="64MiB").check()
    assert run.stdout == "[72.0, 120.0]\n"
    assert "RecordFunction" not in run.stderr
    assert run.report["live_plan"]["kernels"] > 0


WRAPPED = """
import sys, torch
class Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))
weights = [torch.ones(4 << 20, device='cuda') for _ in range(6)]
if sys.argv[1] == 'wrapped':
    weights = [torch.Tensor._make_subclass(Wrapped, weight) for weight in weights]
for _ in range(4):
    for weight in weights:
        weight.add_(1)
print(sum(weight[0].item() for weight in weights))
"""


def test_operators_that_python_calls_again_are_noted_once(simulate: Simulate) -> None:
    runs = [simulate(WRAPPED, kind, capacity="64MiB").check() for kind in ("plain", "wrapped")]
    assert [run.stdout for run in runs] == ["30.0\n"] * 2
    plain, wrapped = (run.report["live_plan"]["kernels"] for run in runs)
    assert wrapped == plain > 24
