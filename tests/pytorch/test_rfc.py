"""RFC-0023 by its names: the switch, the flag, methods of tensors, and the RFC's own examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from uvmalloc.libraries import Libraries

from tests.pytorch.conftest import MOVES_PRELUDE, Checked, Simulate, SimulatedRun

EXAMPLES = Path(__file__).resolve().parents[2] / "bench" / "programs" / "rfc_examples.py"
NAMES = """
functions = [
    f'{verb}_enabled_uvm{rest}' for verb in ('get', 'set') for rest in ('', '_move_on_copy')
]
methods = ['is_managed', 'manage_memory', 'unmanage_memory', 'uvm_to']
def names():
    in_cuda = {hasattr(torch.cuda, n) and n in torch.cuda.memory.__all__ for n in functions}
    return in_cuda, {hasattr(torch.Tensor, n) for n in methods}
"""
PRELUDE = """
import torch
def address(t): return t.untyped_storage().data_ptr()
def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert '\\n' not in str(error) and all(w in str(error) for w in words), error
    else:
        raise AssertionError('not refused')
"""


def preloaded(simulate: Simulate, libraries: Libraries, program: str) -> SimulatedRun:
    """Runs a program with the library preloaded; only the program can switch uvmalloc on."""
    preload = {"LD_PRELOAD": str(libraries.require_uvmalloc())}
    return simulate(program, native=True, environment=preload)


@pytest.mark.parametrize("switched_on_by", ["variable", "program"])
def test_the_examples_of_the_rfc(
    simulate: Simulate, libraries: Libraries, switched_on_by: str
) -> None:
    if switched_on_by == "variable":
        run = simulate(EXAMPLES).check()
    else:
        preload = {"LD_PRELOAD": str(libraries.require_uvmalloc())}
        run = simulate(EXAMPLES, native=True, environment=preload).check()
    assert json.loads(run.stdout) == {"examples": 18, "failed": []}


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_program_has_the_functions_without_an_import_of_ours_and_methods_when_it_asks(
    simulate: Simulate, libraries: Libraries, switch: str
) -> None:
    """Other libraries look for attributes of tensors, so a variable must not add any."""
    preload = {"LD_PRELOAD": str(libraries.require_uvmalloc())}
    run = simulate(
        "import sys, threading\nthread = threading.Thread(target=__import__, args=('torch',))\n"
        "thread.start(); thread.join()\nimport torch"
        + NAMES
        + "print(*names(), 'uvmalloc' in sys.modules, torch.cuda.memory.get_enabled_uvm())\n"
        "torch.cuda.set_enabled_uvm(True)\nprint(*names())",
        native=True,
        environment={**preload, "PYTORCH_ENABLE_UNIFIED_MEMORY": switch},
    ).check()
    assert run.stdout == f"{{True}} {{False}} False {switch == '1'}\n{{True}} {{True}}\n"


def test_is_managed_is_true_with_and_without_a_call(checked: Checked) -> None:
    checked(
        """
torch.cuda.set_enabled_uvm(True)
x, small = torch.ones(1 << 20), torch.ones(3)
assert x.is_managed and x.is_managed() is True and bool(x.is_managed) is True
assert not small.is_managed and small.is_managed() is False
on_device = torch.ones(3, device='cuda:1')
assert on_device.is_managed and not on_device.unmanage_memory().is_managed
assert [t.is_managed() for t in (x, small) if t.is_managed] == [True]
""",
        devices=2,
    )


def test_a_library_that_has_a_flag_of_that_name_finds_its_own(checked: Checked) -> None:
    """bitsandbytes asks for a flag `is_managed` of tensors in memory that it allocates itself."""
    checked("""
import ctypes
torch.cuda.set_enabled_uvm(True)
x = torch.ones(1 << 20)
foreign = torch.frombuffer((ctypes.c_char * (2 << 20))(), dtype=torch.uint8)
assert not getattr(foreign, 'is_managed', False)
foreign.is_managed = True
assert getattr(foreign, 'is_managed', False) is True
assert callable(x.is_managed) and torch.Tensor.is_managed
assert torch.Tensor.is_managed(x) is True and x.is_managed.__name__ == 'is_managed'
x.is_managed = True
assert getattr(x, 'is_managed', False) is True
del x.is_managed
assert x.is_managed() is True
""")


def test_torch_is_untouched_without_uvmalloc(simulate: Simulate) -> None:
    program = "import torch" + NAMES + "print(names(), torch.Tensor.__dict__.get('to'))"
    assert simulate(program, native=True).check().stdout == "({False}, {False}) None\n"


@pytest.mark.parametrize("imports", ["import torch, uvmalloc", "import uvmalloc, torch"])
def test_where_there_is_no_library_the_refusal_names_the_ways_in(
    simulate: Simulate, other_build: Path, imports: str
) -> None:
    simulate(
        imports
        + NAMES
        + PRELUDE
        + """
assert names() == ({True}, {True})
enable, share = torch.cuda.set_enabled_uvm, torch.cuda.set_enabled_uvm_move_on_copy
refused(lambda: enable(True), RuntimeError, 'libuvmalloc_preload.so not found', 'UVMALLOC_LIB_DIR')
refused(lambda: share(True), RuntimeError, share.__name__, 'uvmalloc run', 'set_enabled_uvm(True)')
enable(False); share(False)
assert not torch.cuda.get_enabled_uvm() and not torch.cuda.get_enabled_uvm_move_on_copy()
x = torch.ones(3)
assert not x.is_managed() and x.unmanage_memory() is x and x.uvm_to('cuda').sum().item() == 3
refused(x.manage_memory, RuntimeError, 'not enabled', 'set_enabled_uvm(True)')
""",
        native=True,
        environment={"UVMALLOC_LIB_DIR": str(other_build)},
    ).check()


def test_it_does_not_enable_without_a_device(simulate: Simulate, libraries: Libraries) -> None:
    preload = {"LD_PRELOAD": str(libraries.require_uvmalloc()), "CUDA_VISIBLE_DEVICES": ""}
    program = (
        PRELUDE
        + """
refused(lambda: torch.cuda.set_enabled_uvm(True), RuntimeError, 'no CUDA device')
assert torch.cuda.get_enabled_uvm() is False
assert torch.zeros(1 << 20).sum().item() == 0 and not hasattr(torch.Tensor, 'is_managed')
torch.cuda.set_enabled_uvm(False)
"""
    )
    for switch in ("0", "1"):
        environment = {**preload, "PYTORCH_ENABLE_UNIFIED_MEMORY": switch}
        simulate(program, native=True, environment=environment).check()


def test_it_does_not_enable_without_a_plugin_for_this_torch(
    checked: Checked, lonely_library: Path
) -> None:
    run = checked(
        """
refused(lambda: torch.cuda.set_enabled_uvm(True), RuntimeError, 'no plugin for torch')
assert torch.cuda.get_enabled_uvm() is False and torch.cuda.get_allocator_backend() == 'native'
""",
        native=True,
        environment={"LD_PRELOAD": str(lonely_library)},
    )
    assert run.stderr == ""


def test_it_cannot_be_switched_off(checked: Checked) -> None:
    checked("""
torch.cuda.set_enabled_uvm(True)
refused(lambda: torch.cuda.set_enabled_uvm(False), RuntimeError, 'cannot be switched off')
for value in (1, None, 'yes'):
    for call in (torch.cuda.set_enabled_uvm, torch.cuda.set_enabled_uvm_move_on_copy):
        refused(lambda: call(value), TypeError, call.__name__, 'bool', type(value).__name__)
assert torch.cuda.get_enabled_uvm() is True
""")


def test_a_forked_child_is_not_enabled(checked: Checked) -> None:
    checked("""
import os
torch.cuda.set_enabled_uvm(True)
assert torch.cuda.get_enabled_uvm() and torch.ones(1 << 20).is_managed()
child = os.fork()
if child == 0:
    assert not torch.cuda.get_enabled_uvm()
    refused(lambda: torch.cuda.set_enabled_uvm(True), RuntimeError, 'forked child')
    refused(torch.ones(3).manage_memory, RuntimeError, 'forked child')
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")


def test_a_program_may_enable_it_after_it_has_used_cuda(
    simulate: Simulate, libraries: Libraries
) -> None:
    run = preloaded(
        simulate,
        libraries,
        PRELUDE
        + """
old = torch.arange(1 << 20, dtype=torch.float32)
array = old.numpy()
on_device, pinned = old.cuda(), old.pin_memory()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    in_pool = old.cuda()
graph, static = torch.cuda.CUDAGraph(), torch.zeros(4, device='cuda')
with torch.cuda.graph(graph):
    static += 1
assert torch.cuda.get_allocator_backend() == 'native'
torch.cuda.set_enabled_uvm(True)
assert torch.cuda.get_allocator_backend() == 'uvmalloc' and torch.cuda.get_enabled_uvm()
for tensor in (old, on_device, pinned, in_pool):
    assert not tensor.is_managed() and torch.equal(tensor.cpu(), old)
array[0] = 7
moved = old.cuda()
array[0] = 8
assert moved[0].item() == 7, 'not ours, so it was copied'
assert on_device.manage_memory().is_managed() and pinned.is_pinned()
graph.replay()
assert static.sum().item() == 4
x = torch.ones(1 << 20)
y = x.cuda()
assert x.is_managed() and y.is_managed() and torch.ones(3).pin_memory().is_managed()
on_device.record_stream(torch.cuda.Stream())
on_device.resize_(4 << 20)
assert pool.use_count() == 1
del graph, in_pool, pool, on_device, pinned
torch.cuda.empty_cache()
torch.cuda.set_enabled_uvm(True)
torch.ops.uvmalloc.check_invariants()
""",
    ).check()
    assert run.stderr == ""
    assert run.sim["managed_allocations"] > 0


def test_a_move_to_the_host_synchronises_unless_non_blocking(simulate: Simulate) -> None:
    simulate(
        MOVES_PRELUDE
        + """
def waits():
    return report()['driver_calls'].get('synchronize_stream', 0)
torch.cuda.set_enabled_uvm_move_on_copy(True)
x = torch.ones(1 << 20).to('cuda')
for non_blocking in (True, False):
    before = waits()
    x.to('cpu', non_blocking=non_blocking)
    assert (waits() == before) is non_blocking
assert copied() == {}
"""
    ).check()


def test_the_flag_is_off_at_first_and_can_be_set_and_unset(simulate: Simulate) -> None:
    program = (
        PRELUDE
        + """
import sys
print(torch.cuda.get_enabled_uvm_move_on_copy())
for flag in (True, False):
    torch.cuda.set_enabled_uvm_move_on_copy(flag)
    assert torch.cuda.get_enabled_uvm_move_on_copy() is flag
    x = torch.ones(1 << 20)
    y = x.to('cuda')
    y += 1
    torch.cuda.synchronize()
    assert x.sum().item() == (1 + flag) * (1 << 20)
"""
    )
    for mode in ("cow", "alias", "copy"):
        run = simulate(program, environment={"UVMALLOC_MOVE": mode}).check()
        assert run.stdout == f"{mode == 'alias'}\n"


def test_uvm_to_gives_the_same_memory_of_any_size_and_shape(simulate: Simulate) -> None:
    run = simulate(
        MOVES_PRELUDE
        + PRELUDE
        + """
torch.cuda.set_enabled_uvm(True)
base = torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024)
views = (base, base.t(), base[3:7], base[:, 5], base[::2, ::3], base[0, 0], base[0].expand(4, 1024))
for x in views:
    y = x.uvm_to('cuda', non_blocking=True)
    assert y.is_cuda and y.stride() == x.stride() and torch.equal(y.cpu(), x)
    assert y.data_ptr() == x.data_ptr()
    assert y._version == x._version and y is not x
assert base.uvm_to('cpu') is base and base.uvm_to(torch.float64).dtype == torch.float64
small = torch.arange(5).manage_memory()
there = small.uvm_to('cuda:0')
there += 1
torch.cuda.synchronize()
assert small.tolist() == [1, 2, 3, 4, 5]
back = there.uvm_to('cpu')
back.zero_()
del small, there
assert back.tolist() == [0] * 5 and back.uvm_to('cuda').is_managed()
assert torch.ones(5).uvm_to('cuda').cpu().tolist() == [1] * 5, 'not managed: a copy'
assert base[:0].uvm_to('cuda').shape == (0, 1024)
forced = base.uvm_to('cuda', copy=True)
forced.zero_()
torch.cuda.synchronize()
assert base[1, 1].item() == 1025
try:
    base.uvm_to('cuda', nonsense=1)
except TypeError:
    pass
assert base.to('cuda').data_ptr() != base.data_ptr(), 'the flag is back to what it was'
torch.ops.uvmalloc.check_invariants()
"""
    ).check()
    assert run.report["moves"]["total"] >= 7


def test_gradients_flow_through_all_of_it(checked: Checked) -> None:
    checked("""
torch.cuda.set_enabled_uvm(True)
x = torch.arange(8.0, requires_grad=True)
y = x.manage_memory()
z = (y.uvm_to('cuda') * 2).unmanage_memory().to('cpu', manage=True)
assert y.is_managed() and z.is_managed()
z.sum().backward()
assert x.grad.tolist() == [2.0] * 8
""")


def test_manage_memory_returns_what_is_managed_and_refuses_what_cannot_be(
    checked: Checked,
) -> None:
    checked("""
early = torch.ones(1 << 20)
torch.cuda.set_enabled_uvm(True)
assert not early.is_managed() and early.manage_memory().is_managed()
x = torch.ones(1 << 20)
assert x.manage_memory() is x and x.unmanage_memory().unmanage_memory().sum().item() == 1 << 20
strided = torch.arange(6.0).reshape(2, 3).t().manage_memory()
assert strided.is_managed() and strided.stride() == (1, 3)
empty = torch.ones(0)
assert empty.manage_memory().shape == (0,) and not empty.is_managed()
meta = torch.ones(3, device='meta')
assert not meta.is_managed()
refused(meta.manage_memory, RuntimeError, 'manage_memory', 'meta', 'accepted: cpu, cuda')
sparse = torch.eye(3).to_sparse()
assert not sparse.is_managed()
refused(sparse.manage_memory, RuntimeError, 'manage_memory', 'strided')
class Sub(torch.Tensor): pass
sub = torch.ones(3).as_subclass(Sub)
assert not sub.is_managed() and sub.manage_memory().is_managed()
assert isinstance(sub.manage_memory(), Sub)
with torch.inference_mode():
    assert torch.ones(3).manage_memory().is_managed()
""")


def test_to_takes_manage_and_is_otherwise_torchs_own(checked: Checked) -> None:
    checked("""
torch.cuda.set_enabled_uvm(True)
x = torch.arange(4, dtype=torch.int32)
assert type(torch.Tensor.to).__name__ == 'method_descriptor' and 'to' not in vars(torch.Tensor)
for managed in (x.to(torch.float64, manage=True), x.to(manage=True), x.to('cuda', manage=True)):
    assert managed.is_managed() and managed.tolist() == [0, 1, 2, 3]
managed = x.to(manage=True)
assert managed.to('cpu', manage=True) is managed
for ordinary in (managed.to(manage=False), managed.to('cuda', manage=False)):
    assert not ordinary.is_managed() and ordinary.tolist() == [0, 1, 2, 3]
assert x.to('cpu', manage=None) is x and x.to(device='cpu', copy=False) is x
refused(lambda: x.to('cpu', manage=1), TypeError, "'manage' must be bool, not int")
for wrong in ({'nonsense': 1}, {'manage': True, 'nonsense': 1}):
    try:
        x.to('cpu', **wrong)
    except TypeError as error:
        assert 'nonsense' in str(error) or 'invalid combination' in str(error), error
    else:
        raise AssertionError(wrong)
class Sub(torch.Tensor):
    calls = 0
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls += function is torch.Tensor.to
        return super().__torch_function__(function, types, args, kwargs or {})
assert x.as_subclass(Sub).to('cuda', manage=True).is_managed() and Sub.calls == 1
""")
