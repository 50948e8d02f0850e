"""A torch that has no plugin: its own CUDA allocation calls are served, and one line says so."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from uvmalloc.libraries import Libraries

from tests.pytorch.conftest import TORCH_MINOR, Simulate, SimulatedRun
from tests.pytorch.test_ways_in import AUTOLOAD

pytestmark = pytest.mark.slow

# Trains a model of 96 MiB with a momentum of the same size, and gradients.
TRAINING = """
import torch
torch.manual_seed(1)
torch.set_num_threads(1)
layers = [torch.nn.Linear(2048, 2048, bias=False) for _ in range(6)]
model = torch.nn.Sequential(*layers).to('cuda')
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
inputs = torch.randn(8, 2048)
for step in range(3):
    optimizer.zero_grad()
    loss = model(inputs.pin_memory().to('cuda', non_blocking=True)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
print(sum(float(layer.weight.detach().double().sum()) for layer in layers).hex())
"""
SMALL_DEVICE = "128MiB"


class WithoutPlugin:
    """Runs programs under a library whose folder holds no plugin for the installed torch."""

    def __init__(self, simulate: Simulate, library: Path) -> None:
        self.simulate, self.preload = simulate, {"LD_PRELOAD": str(library)}

    def __call__(self, program: str, capacity: str | None = None, **variables: str) -> SimulatedRun:
        """Runs a program in the environment that `uvmalloc run` makes."""
        return self.simulate(
            program, capacity=capacity, environment={**self.preload, **variables}
        ).check()


@pytest.fixture
def without_plugin(simulate: Simulate, lonely_library: Path) -> WithoutPlugin:
    return WithoutPlugin(simulate, lonely_library)


def is_said_once(run: SimulatedRun) -> bool:
    lines = [line for line in run.stderr.splitlines() if line.startswith("uvmalloc: ")]
    return len(lines) == 1 and "serves torch's CUDA allocation calls" in lines[0]


def is_served(run: SimulatedRun) -> bool:
    made = run.sim["device_allocations"] + run.sim["pinned_allocations"]
    return made == 0 and run.sim["managed_allocations"] > 0


def test_a_model_larger_than_the_device_trains_to_the_same_values(
    simulate: Simulate, without_plugin: WithoutPlugin
) -> None:
    alone = simulate(TRAINING, native=True, capacity=SMALL_DEVICE)
    assert alone.returncode == 1 and "OutOfMemoryError" in alone.stderr
    expected = simulate(TRAINING, native=True).check().stdout
    run = without_plugin(TRAINING, SMALL_DEVICE)
    assert run.stdout == expected and len(expected.splitlines()) == 4
    assert is_said_once(run) and is_served(run)
    assert run.report["framework"] is False
    assert run.report["cuda_calls"]["cudaMalloc"]["served"] > 0
    assert run.report["facades"]["device"]["peak_bytes"] > 128 << 20


@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param("backend:cudaMallocAsync", marks=pytest.mark.all),
        pytest.param("backend:native,max_split_size_mb:32", marks=pytest.mark.all),
        "expandable_segments:True",
        pytest.param("pinned_use_cuda_host_register:True", marks=pytest.mark.all),
    ],
)
def test_settings_of_torchs_allocator_stay_in_force(
    simulate: Simulate, without_plugin: WithoutPlugin, configuration: str
) -> None:
    variables = {"PYTORCH_CUDA_ALLOC_CONF": configuration}
    expected = simulate(TRAINING, native=True, environment=variables).check().stdout
    run = without_plugin(TRAINING, SMALL_DEVICE, **variables)
    assert run.stdout == expected
    assert is_said_once(run) and run.sim["device_allocations"] == 0


def test_a_tensor_larger_than_an_expandable_segment_raises_an_error(
    without_plugin: WithoutPlugin,
) -> None:
    program = """
import torch
def fits(mib):
    try:
        return torch.zeros(mib << 20, dtype=torch.uint8, device='cuda')[-1].item() == 0
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False
print([fits(mib) for mib in (120, 140, 300, 120)])
kept = [torch.full((4 << 20,), i, dtype=torch.uint8, device='cuda') for i in range(50)]
print([int(each[-1]) for each in kept] == list(range(50)))
"""
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    run = without_plugin(program, SMALL_DEVICE, **variables)
    assert run.stdout == "[True, True, False, True]\nTrue\n"


def test_streams_graphs_and_statistics_work_as_without_uvmalloc(
    simulate: Simulate, without_plugin: WithoutPlugin
) -> None:
    program = """
import torch
x = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = x.to('cuda', non_blocking=True) * 2
torch.cuda.current_stream().wait_stream(side)
y.record_stream(torch.cuda.current_stream())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = y + 1
for _ in range(2):
    graph.replay()
torch.cuda.synchronize()
print(y.sum().item(), z.sum().item(), x.is_pinned(), y.cpu().is_pinned())
print(torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved())
del y, z, graph
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved(), torch.cuda.get_allocator_backend())
"""
    expected = simulate(program, native=True).check().stdout
    run = without_plugin(program)
    assert run.stdout == expected and is_said_once(run) and is_served(run)


WHICH = """
import torch
print(torch.ones(4, device='cuda').sum().item(), torch.cuda.get_allocator_backend())
"""


@pytest.mark.parametrize("value", ["auto", "1"])
def test_the_line_says_what_is_served_what_is_lost_and_what_to_do(
    without_plugin: WithoutPlugin, value: str
) -> None:
    run = without_plugin(WHICH, UVMALLOC_CUDA=value)
    assert run.stdout == "4.0 native\n" and is_said_once(run) and is_served(run)
    for words in (
        "there is no plugin for torch 2.",
        "need more memory than the device has",
        "each move",
        "install a torch that has a plugin",
        "UVMALLOC_CUDA=0",
    ):
        assert words in run.stderr


@pytest.mark.parametrize("value", ["0", ""])
def test_switched_off_torch_keeps_its_memory(without_plugin: WithoutPlugin, value: str) -> None:
    run = without_plugin(WHICH, UVMALLOC_CUDA=value)
    assert run.stdout == "4.0 native\n" and run.sim["device_allocations"] > 0
    assert run.stderr.endswith(": torch keeps its own allocators\n")
    assert run.stderr.count("\n") == 1 and run.sim.get("managed_allocations", 0) == 0


def test_unified_memory_switched_off_serves_no_torch(without_plugin: WithoutPlugin) -> None:
    run = without_plugin(WHICH, PYTORCH_ENABLE_UNIFIED_MEMORY="0")
    assert run.stdout == "4.0 native\n" and run.stderr == ""
    assert run.sim["device_allocations"] > 0 and run.sim.get("managed_allocations", 0) == 0


TABLE = b"_ZTVN3c104cuda20CUDACachingAllocator13CUDAAllocatorE"


def with_another_table(plugin: bytes) -> bytes:
    """Returns a plugin whose symbol of torch's class has another size: one built for other
    classes."""
    sections, size, count = (
        int.from_bytes(plugin[0x28:0x30], "little"),
        *struct.unpack_from("<HH", plugin, 0x3A),
    )
    headers = [
        struct.unpack_from("<IIQQQQII", plugin, sections + size * each) for each in range(count)
    ]
    changed = bytearray(plugin)
    for _, kind, _, _, offset, table_bytes, link, _ in headers:
        if kind not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        names = headers[link][4]
        for at in range(offset, offset + table_bytes, 24):
            name = names + int.from_bytes(plugin[at : at + 4], "little")
            if plugin[name : name + len(TABLE)] == TABLE:
                struct.pack_into("<Q", changed, at + 16, 8)
    assert changed != plugin
    return bytes(changed)


@pytest.mark.parametrize("plugin", ["of other classes", "broken"])
def test_a_plugin_that_does_not_fit_is_none(
    simulate: Simulate, libraries: Libraries, other_build: Path, plugin: str
) -> None:
    file = next(f for f in libraries.plugins() if f.name.endswith(f"_2_{TORCH_MINOR}.so"))
    copy = other_build / file.name
    text = with_another_table(file.read_bytes()) if plugin == "of other classes" else b"no library"
    copy.write_bytes(text)
    library = shutil.copy(libraries.require_uvmalloc(), other_build / "libuvmalloc_preload.so")
    run = WithoutPlugin(simulate, library)(TRAINING, SMALL_DEVICE)
    assert is_said_once(run) and is_served(run)
    words = "has other classes" if plugin == "of other classes" else "could not be loaded"
    assert words in run.stderr


FIRST_CALL = """
import ctypes
runtime = ctypes.CDLL('libcudart.so.13')
def allocate():
    out = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(1 << 20)) == 0
    return out
first = allocate()
"""


def test_a_program_that_allocates_before_it_imports_torch(
    simulate: Simulate, without_plugin: WithoutPlugin
) -> None:
    """The first call comes before anybody can know what torch there will be."""
    program = (
        FIRST_CALL
        + WHICH
        + """
second = allocate()
assert runtime.cudaFree(first) == 0 and runtime.cudaFree(second) == 0
"""
    )
    run = without_plugin(program, UVMALLOC_STARTUP_LINE="0")
    assert run.stdout == "4.0 native\n" and is_said_once(run) and is_served(run)
    # The same program with a plugin: torch is served by the plugin, and later calls go to CUDA.
    run = simulate(program, environment={"UVMALLOC_STARTUP_LINE": "0"}).check()
    assert run.stdout == "4.0 uvmalloc\n" and run.stderr == ""
    assert run.sim["device_allocations"] == 1


def test_a_refused_request_for_unified_memory_changes_nothing(
    without_plugin: WithoutPlugin,
) -> None:
    """The program requests it late, after torch has used its own memory."""
    program = """
import torch
kept = torch.ones(1 << 20, device='cuda')
try:
    torch.cuda.set_enabled_uvm(True)
except RuntimeError as error:
    print('there is no plugin for torch' in str(error), torch.cuda.get_enabled_uvm())
more = torch.ones(1 << 26, device='cuda')
print((kept.sum() + more.sum()).item())
"""
    run = without_plugin(program, PYTORCH_ENABLE_UNIFIED_MEMORY="0")
    assert run.stdout == f"True False\n{float((1 << 20) + (1 << 26))}\n" and run.stderr == ""
    assert run.sim.get("managed_allocations", 0) == 0
    run = without_plugin(program)
    assert run.stdout.startswith("True False\n") and is_said_once(run) and is_served(run)


def test_a_library_that_the_calls_do_not_reach_promises_nothing(
    simulate: Simulate, lonely_library: Path
) -> None:
    """The entry point loads the library after torch, so torch's calls are bound already."""
    run = simulate(
        AUTOLOAD + WHICH,
        native=True,
        environment={
            "UVMALLOC_LIB_DIR": str(lonely_library.parent),
            "PYTORCH_ENABLE_UNIFIED_MEMORY": "1",
            "UVMALLOC_CUDA": "1",
        },
    ).check()
    assert run.stdout == "4.0 native\n" and run.sim["device_allocations"] > 0
    assert run.stderr.endswith(": torch keeps its own allocators\n")
    assert run.stderr.count("\n") == 1
