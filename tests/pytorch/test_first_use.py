"""Before and after a program's first use of CUDA. uvmalloc is never the first to initialise the
driver or to make a context. Earlier CPU tensors are converted at their first move, if nobody
else can be reading them."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import Checked

PRELUDE = """
import ctypes, json, os, torch
torch.set_num_threads(1)  # a child has none of its parent's threads
MIB = 1 << 20
def driver():
    return ctypes.CDLL('libcuda.so.1')
def driver_answer():
    count = ctypes.c_int()
    return driver().cuDeviceGetCount(ctypes.byref(count))
def contexts(devices):
    out = []
    for device in range(devices):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        driver().cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        out.append(active.value)
    return out
def large(size_bytes=4 * MIB):
    return torch.arange(size_bytes // 4, dtype=torch.int32)
def is_managed(tensor):
    return torch.ops.uvmalloc.is_managed(tensor)
def report():
    return json.loads(torch.ops.uvmalloc.report())
def reasons():
    return {k: v['count'] for k, v in report()['copies_by_moves']['by_reason'].items()}
def in_child(body):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]
"""
NOT_INITIALIZED = 3


# ---- who initialises ----------------------------------------------------------------------------


def test_cpu_tensors_initialise_nothing(checked: Checked) -> None:
    run = checked(f"""
x = large(64 * MIB)
y = x * 2
del y
assert not is_managed(x) and x.sum().item() > 0
assert torch.cuda.get_enabled_uvm()
assert driver_answer() == {NOT_INITIALIZED}
assert not torch.cuda.is_initialized()
""")
    assert run.sim.get("managed_allocations", 0) == 0


@pytest.mark.parametrize(
    "first_use",
    [
        "torch.cuda.is_available()",
        "torch.cuda.init()",
        "torch.ones(1, device='cuda')",
        "torch.cuda.set_enabled_uvm(True)",
    ],
)
def test_cpu_tensors_are_managed_once_the_program_has_initialised_cuda(
    checked: Checked, first_use: str
) -> None:
    checked(f"assert not is_managed(large())\n{first_use}\nassert is_managed(large())")


def test_a_device_is_not_chosen_for_the_program(checked: Checked) -> None:
    """A query whether there is CUDA does not say which of two devices will be used."""
    checked(
        """
assert torch.cuda.is_available()
x = large()
assert not is_managed(x) and contexts(2) == [0, 0]
y = x.to('cuda:1')
assert is_managed(x) and is_managed(large()) and contexts(2) == [0, 1], contexts(2)
assert torch.equal(x, y.cpu())
""",
        devices=2,
    )


@pytest.mark.parametrize(
    "use",
    [
        "y = large().to('cuda:1')",
        "torch.cuda.is_available(); y = large().to('cuda:1')",
        "y = torch.ones(MIB, device='cuda:1'); x = large(); x.to('cuda:1').add_(1); x.add_(1)",
        "torch.cuda.set_device(1); p = large().pin_memory(); y = p.to('cuda', non_blocking=True)",
        "y = torch.ones(MIB, device='cuda:1'); p = large().pin_memory()",
        "y = torch.ones(MIB, device='cuda:1'); z = y.cpu(); z.add_(1); torch.cuda.empty_cache()",
        "torch.cuda.set_per_process_memory_fraction(0.5, 1); y = torch.ones(MIB, device='cuda:1')",
        "x = large(); y = x.to('cuda:1'); import uvmalloc; uvmalloc.prefetch(x, 'cpu')",
    ],
)
def test_a_program_that_uses_device_1_has_no_context_on_device_0(
    checked: Checked, use: str
) -> None:
    run = checked(f"{use}\nprint(contexts(2))", devices=2)
    assert run.stdout == "[0, 1]\n"


def test_variable_manages_cpu_tensors_at_once(checked: Checked) -> None:
    checked(
        """
x = large()
assert is_managed(x) and driver_answer() == 0
""",
        environment={"UVMALLOC_CPU": "managed"},
    )


def test_a_bad_value_of_the_variable_is_one_line_and_the_default_holds(checked: Checked) -> None:
    run = checked(
        f"x = large()\nassert driver_answer() == {NOT_INITIALIZED}",
        environment={"UVMALLOC_CPU": "always"},
    )
    assert run.stderr.count("\n") == 1
    assert "UVMALLOC_CPU='always'" in run.stderr and "accepted: auto, managed" in run.stderr


def test_devices_made_visible_after_a_cpu_tensor_are_those_that_are_used(
    same_output: Checked,
) -> None:
    run = same_output(
        """
x = large()
os.environ['CUDA_VISIBLE_DEVICES'] = '1'
y = x.to('cuda')
print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid, y.sum().item())
count = ctypes.c_int()
assert driver().cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value)
""",
        devices=2,
    )
    assert run.stdout.startswith("1 ") and run.stdout.endswith("\n1\n")


# ---- forks --------------------------------------------------------------------------------------


def test_a_child_of_a_parent_with_cpu_tensors_can_use_cuda(same_output: Checked) -> None:
    same_output("""
x = large(8 * MIB)
freed = large(8 * MIB)
del freed
def child():
    print(torch.cuda.is_available(), torch.cuda.device_count())
    y = x.to('cuda')
    y.add_(1)
    print(y.sum().item() - x.sum().item(), torch.ones(4, device='cuda').sum().item(), flush=True)
for _ in range(2):
    print(in_child(child), flush=True)
print(x.sum().item(), x.to('cuda').sum().item())
""")


@pytest.mark.parametrize("how", ["pool", "loader"])
def test_worker_processes_are_the_first_to_use_cuda(same_output: Checked, how: str) -> None:
    bodies = {
        "pool": """
import multiprocessing
with multiprocessing.get_context('fork').Pool(2) as pool:
    print(pool.map(work, range(4)))
""",
        "loader": """
from torch.utils.data import DataLoader
print(list(DataLoader(range(4), batch_size=None, num_workers=2, collate_fn=work,
                      multiprocessing_context='fork')))
""",
    }
    same_output(f"""
data = large(4 * MIB)
def work(row):
    assert torch.cuda.is_available()
    return int(data.to('cuda')[row].item())
{bodies[how]}
""")


def test_children_convert_for_themselves(checked: Checked) -> None:
    checked("""
x = large(8 * MIB)
def child():
    assert x.to('cuda').sum().item() == x.sum().item() and is_managed(x)
    assert report()['conversions'] == {'count': 1, 'bytes': x.nbytes}
    x.zero_()
expected = x.sum().item()
assert [in_child(child) for _ in range(3)] == [0, 0, 0]
assert x.sum().item() == expected and not is_managed(x)
assert x.to('cuda').sum().item() == expected
assert in_child(lambda: x.sum().item() == expected or os._exit(2)) == 0
""")


USE_IN_CHILD = """
def child():
    try:
        torch.ones(1, device='cuda')
    except RuntimeError as error:
        print(error)
    print(torch.cuda.is_available(), large().sum().item() > 0, flush=True)
assert in_child(child) == 0
"""


@pytest.mark.parametrize("first_use", ["torch.cuda.init()", "torch.cuda.is_available()"])
def test_torch_reports_a_child_forked_after_torch_initialised_cuda(
    same_output: Checked, first_use: str
) -> None:
    run = same_output(first_use + USE_IN_CHILD)
    assert "Cannot re-initialize CUDA in forked subprocess" in run.stdout


@pytest.mark.parametrize(
    ("first_use", "variables"),
    [
        ("torch.cuda.set_enabled_uvm(True)", {}),
        ("x = large()", {"UVMALLOC_CPU": "managed"}),
    ],
)
def test_a_child_forked_after_uvmalloc_initialised_cuda_gets_the_cause(
    checked: Checked, first_use: str, variables: dict[str, str]
) -> None:
    run = checked(first_use + USE_IN_CHILD, environment=variables)
    assert "Cannot re-initialize CUDA in forked subprocess" in run.stdout
    assert run.stdout.endswith("False True\n")
    line = "CUDA cannot be used in this process: it was forked after CUDA had been initialised"
    assert run.stderr.count(line) == 1 and "spawn" in run.stderr
    assert ("UVMALLOC_CPU=managed" in run.stderr) == ("UVMALLOC_CPU" in variables)


# ---- conversion ---------------------------------------------------------------------------------


def test_the_first_move_converts_and_shares(checked: Checked) -> None:
    run = checked("""
x = large(64 * MIB)
before = x.sum().item()
y = x.to('cuda')
assert is_managed(x) and y.sum().item() == x.sum().item() == before
assert reasons() == {}
assert report()['conversions'] == {'count': 1, 'bytes': 64 * MIB}
z = x.to('cuda')  # as any managed tensor
assert report()['conversions']['count'] == 1 and reasons() == {}
y.add_(1)
x.add_(2)
assert (y.sum() - z.sum()).item() == x.numel() and x.sum().item() == before + 2 * x.numel()
torch.ops.uvmalloc.check_invariants()
""")
    assert run.report["moves"]["total"] == 2
    assert run.report["copies_by_moves"]["count"] == 0
    assert "converted" not in run.report["copies_by_moves"]["by_reason"]


def test_a_tensor_is_never_in_memory_twice(checked: Checked) -> None:
    run = checked("""
def resident(key):
    lines = open('/proc/self/status').read().splitlines()
    return next(int(l.split()[1]) << 10 for l in lines if l.startswith(key + ':'))
x = torch.empty(256 * MIB, dtype=torch.uint8).fill_(7)
torch.ones(4, device='cuda').sum().item()
torch.empty(4 * MIB).to('cuda').sum().item()
size = x.nbytes
before = resident('VmRSS')
open('/proc/self/clear_refs', 'w').write('5')  # the peak begins anew
y = x.to('cuda')
assert is_managed(x)
print((resident('VmHWM') - before) / size, (resident('VmRSS') - before) / size)
assert y[-1].item() == x[0].item() == 7
""")
    peak, now = map(float, run.stdout.split())
    assert peak <= 0.02
    assert now <= 0.02


def test_an_automatic_budget_grows_by_what_is_converted(checked: Checked) -> None:
    """The memory of earlier tensors did not count as available when the budget was made."""
    body = """
x = large(64 * MIB)
torch.cuda.init()
torch.ones(1, device='cuda')
before = report()['budget_bytes']
x.to('cuda')
print((report()['budget_bytes'] - before) // MIB, is_managed(x))
"""
    assert checked(body).stdout == "64 True\n"
    assert checked(body, budget="512MiB").stdout == "0 True\n"


def test_without_room_in_the_budget_the_tensor_stays_as_it_is(checked: Checked) -> None:
    checked(
        """
x = large(64 * MIB)
try:
    x.to('cuda')
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError('it fits into 32 MiB')
assert not is_managed(x) and x[0].item() == 0 and x[-1].item() == x.numel() - 1
assert report()['conversions']['count'] == 0
torch.ops.uvmalloc.check_invariants()
""",
        budget="32MiB",
    )


@pytest.mark.parametrize(
    "export",
    [
        "a = x.numpy()",
        "a = torch.from_dlpack(x).numpy()",
        "p = x.data_ptr()",
        "p = x[1000:].data_ptr()",
        "p = x.untyped_storage().data_ptr()",
    ],
)
def test_with_a_raw_pointer_out_it_is_copied(checked: Checked, export: str) -> None:
    checked(f"""
x = large(8 * MIB)
address = ctypes.c_int.from_address
{export}
y = x.to('cuda')
assert not is_managed(x) and reasons() == {{'exported_pointer': 1}}, reasons()
assert report()['conversions']['count'] == 0
x[0] = -5
if 'a' in globals():
    assert a[0] == -5
if 'p' in globals():
    assert address(p).value == x.flatten()[(p - x.data_ptr()) // 4].item()
assert y[0].item() == 0 and y[-1].item() == x[-1].item()
""")


def test_an_exported_tensor_is_not_shared_for_good_either(checked: Checked) -> None:
    checked("""
x = large(8 * MIB)
z = large(8 * MIB)
a = x.numpy()
torch.cuda.set_enabled_uvm(True)
y = x.uvm_to('cuda')
a[0] = -5
assert x[0].item() == -5 and y[0].item() == 0
assert reasons() == {'exported_pointer': 1}
w = z.uvm_to('cuda')
z[0] = -5
assert w[0].item() == -5 and report()['conversions']['count'] == 1
""")


@pytest.mark.parametrize(
    "owner",
    [
        "row = x[1000:2000]",
        "transposed = x.view(1024, -1).t()",
        "state = {'x': x.detach()}",
        "w = (torch.ones_like(x, dtype=torch.float32, requires_grad=True) * x).sum()",
    ],
)
def test_with_another_owner_of_its_memory_it_is_copied(checked: Checked, owner: str) -> None:
    """Another owner may be C++ code that reads the tensor in a thread of its own."""
    checked(f"""
x = large(8 * MIB)
{owner}
y = x.to('cuda')
assert not is_managed(x) and reasons() == {{'may_be_read': 1}}, reasons()
assert report()['conversions']['count'] == 0
assert torch.equal(y.cpu(), x)
""")


def test_while_python_has_another_thread_it_is_copied(checked: Checked) -> None:
    checked("""
import threading
x, y = large(8 * MIB), large(8 * MIB)
torch.cuda.init()
done = threading.Event()
reader = threading.Thread(target=lambda: (done.wait(), x.sum()))
reader.start()
moved = x.to('cuda')
in_thread = []
mover = threading.Thread(target=lambda: in_thread.append(y.to('cuda')))
mover.start()
mover.join()
assert not is_managed(x) and not is_managed(y) and reasons() == {'may_be_read': 2}, reasons()
done.set()
reader.join()
again = x.to('cuda')
assert is_managed(x) and report()['conversions']['count'] == 1 and reasons()['may_be_read'] == 2
assert torch.equal(moved, again) and torch.equal(again.cpu(), x)
""")


def test_a_thread_that_saves_a_tensor_writes_its_bytes_beside_a_move(checked: Checked) -> None:
    """The thread is between two pieces of the tensor while the tensor moves."""
    checked("""
import io, threading
model = torch.nn.Linear(2048, 2048, bias=False)
state = model.state_dict()
expected = state['weight'].clone()
torch.cuda.init()
begun, moved = threading.Event(), threading.Event()
class File(io.BytesIO):
    def write(self, piece):
        if len(piece) >= MIB:
            begun.set()
            moved.wait()
        return super().write(piece)
file = File()
saver = threading.Thread(target=lambda: torch.save(state, file))
saver.start()
begun.wait()
model.to('cuda')
moved.set()
saver.join()
file.seek(0)
assert torch.equal(torch.load(file)['weight'], expected)
assert torch.equal(model.weight.detach().cpu(), expected)
""")


@pytest.mark.parametrize(
    "make",
    [
        "x = large().share_memory_()",
        "x = torch.from_file(path, shared=True, size=MIB, dtype=torch.int32)",
        "x = torch.from_file(path, shared=False, size=MIB, dtype=torch.int32)",
        "import numpy; x = torch.from_numpy(numpy.arange(MIB, dtype=numpy.int32))",
        "x = torch.frombuffer(bytearray(4 * MIB), dtype=torch.int32)",
        "x = torch.empty(0, dtype=torch.int32).set_(torch.UntypedStorage(4 * MIB)).fill_(3)",
    ],
)
def test_memory_of_others_is_copied_as_ever(checked: Checked, make: str) -> None:
    checked(f"""
import tempfile
path = tempfile.mkstemp()[1]
open(path, 'wb').write(bytes(4 * MIB))
{make}
y = x.to('cuda')
assert torch.equal(y.cpu(), x) and not is_managed(x)
assert reasons() == {{'foreign_memory': 1}} and report()['conversions']['count'] == 0, reasons()
os.unlink(path)
""")


def test_gradients_flow_through_a_conversion(same_output: Checked) -> None:
    same_output("""
p = torch.arange(MIB, dtype=torch.float32, requires_grad=True)
q = (p * 2).detach().requires_grad_()
(q.to('cuda') * p.to('cuda')).sum().backward()
print(p.grad[3].item(), q.grad[3].item(), p.is_leaf, p._version, q._version)
model = torch.nn.Linear(2048, 512)
before = model.weight.sum().item()
kept = model.weight
assert model.to('cuda').weight is kept
print(abs(kept.sum().item() - before) < 1e-2, kept.is_cuda, kept.requires_grad)
with torch.inference_mode():
    print(torch.ones(MIB).to('cuda').sum().item())
""")


def test_threads_that_move_the_same_tensor_all_get_it(checked: Checked) -> None:
    checked("""
import threading
tensors = [large(16 * MIB) + n for n in range(4)]
sums = [t.sum().item() for t in tensors]
start = threading.Barrier(8)
moved = {}
def move(thread):
    start.wait()
    moved[thread] = [t.to('cuda') for t in tensors]
threads = [threading.Thread(target=move, args=[n]) for n in range(8)]
torch.cuda.init()
for t in threads: t.start()
for t in threads: t.join()
assert all([t.sum().item() for t in moved[n]] == sums for n in range(8))
assert report()['conversions']['count'] == 0 and reasons() == {'may_be_read': 32}, reasons()
torch.ops.uvmalloc.check_invariants()
""")


def test_freed_memory_is_forgotten(checked: Checked) -> None:
    """A block that the C library gives out again is another block, so it may be converted."""
    checked("""
for _ in range(8):
    x = large(2 * MIB)
    x.numpy()
    del x
x = large(2 * MIB)
x.to('cuda')
assert is_managed(x) and reasons() == {}
""")


def test_what_torch_load_reads_for_a_device_goes_there_without_a_copy(checked: Checked) -> None:
    checked("""
import io
file = io.BytesIO()
torch.save({'a': large(8 * MIB), 'b': large(4 * MIB)}, file)
file.seek(0)
read = torch.load(file, map_location='cuda')
assert reasons() == {} and report()['moves']['host_to_device'] == 2, report()['moves']
assert read['a'].is_cuda and torch.equal(read['b'].cpu(), large(4 * MIB))
""")


def test_settings_that_copy_convert_nothing(checked: Checked) -> None:
    checked(
        """
x = large(8 * MIB)
assert torch.equal(x.to('cuda').cpu(), x)
assert not is_managed(x) and report()['conversions']['count'] == 0
assert reasons()['mode'] >= 1
""",
        environment={"UVMALLOC_MOVE": "copy"},
    )
