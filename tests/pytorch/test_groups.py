"""Groups of tensors that sleep and wake (docs/reference/groups.md)."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import REFUSED_PRELUDE, Checked, Simulate

PRELUDE = (
    REFUSED_PRELUDE
    + """
import torch, uvmalloc
MIB = 1 << 20
def tensors(count=4, mib=16):
    return [torch.randn(mib * MIB // 4, device='cuda') for _ in range(count)]
def here(group):
    return group.figures().device_bytes // MIB
torch.manual_seed(0)
"""
)
# Three groups of 96 MiB that sleep.
ASLEEP = """
groups, made = {}, {}
for name in 'abc':
    with uvmalloc.group(name) as groups[name]:
        made[name] = tensors(6)
    groups[name].sleep()
    torch.cuda.synchronize()
"""
_OLD_DRIVER = "12.9"


def test_a_group_takes_what_is_created_inside_and_what_is_added(checked: Checked) -> None:
    checked("""
with uvmalloc.group('outer') as outer:
    kept = tensors(2)
    with uvmalloc.group('inner', priority=3) as inner:
        nested = tensors(1)
    on_host = torch.zeros(16 * MIB // 4)
model = torch.nn.Linear(2048, 2048, device='cuda')
of = uvmalloc.group_of(model)
assert uvmalloc.group_of(model.parameters(), name='listed').figures().blocks == 2
of.add(model)
assert outer.figures().blocks == 3 and inner.figures().blocks == 1
assert of.name == 'Linear-1' and of.figures().blocks == 2
assert set(uvmalloc.groups()) == {'outer', 'inner', 'Linear-1', 'listed'}
on_device = on_host.cuda()
assert here(outer) == 48
inner.add([kept[0], {'model': model}])
assert outer.figures().blocks == 2 and inner.figures().blocks == 4
inner.remove(model)
assert inner.figures().blocks == 2
del kept, nested, model
assert inner.figures().blocks == 0
assert uvmalloc.group('inner') is inner
""")


def test_sleeping_and_waking_change_no_bytes_and_no_addresses(same_output: Checked) -> None:
    run = same_output("""
with uvmalloc.group('llm') as group:
    held = tensors()
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
uvmalloc.group_of(model, name='model')
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
addresses = [each.data_ptr() for each in held]
for step in range(4):
    group.sleep()
    loss = model(torch.randn(8, 1024, device='cuda')).square().mean()
    loss.backward()
    if step == 1:
        uvmalloc.group('model').sleep()
    optimizer.step()
    optimizer.zero_grad()
    group.wake(lazily=step == 2)
    held[step].add_(step)
    print(loss.item(), [each.sum().item() for each in held])
assert addresses == [each.data_ptr() for each in held]
""")
    llm = next(each for each in run.report["groups"] if each["name"] == "llm")
    assert llm["sleeps"] == llm["wakes"] == 4


def test_a_sleeping_group_leaves_the_device_and_clean_pages_without_a_copy(
    checked: Checked,
) -> None:
    checked("""
from bench.simulated_counters import load_simulator, read_machine
simulator = load_simulator()
def to_host():
    torch.cuda.synchronize()
    return read_machine(simulator)['migrated_bytes_to_host']
with uvmalloc.group('llm') as group:
    held = tensors()
before = to_host()
assert group.sleep() == 64 * MIB
assert to_host() - before == 64 * MIB
assert all(uvmalloc.residency(each, exact=True) == {'host': 16 * MIB} for each in held)
assert group.wake() == 64 * MIB
total = sum(float(each.sum()) for each in held)
before = to_host()
assert group.sleep() == 64 * MIB
assert to_host() == before, 'the pages were only read'
assert group.figures().kept_bytes == 64 * MIB
group.wake()
for each in held:
    each.mul_(2)
assert group.sleep() == 64 * MIB
assert to_host() - before == 64 * MIB
assert 2 * total == sum(float(each.sum()) for each in held)
""")


def test_kernels_of_other_streams_and_the_host_use_a_sleeping_group(same_output: Checked) -> None:
    same_output("""
with uvmalloc.group('llm') as group:
    held = tensors(2)
torch.cuda.synchronize()
side = torch.cuda.Stream()
group.sleep()
with torch.cuda.stream(side):
    doubled = held[0] * 2
torch.cuda.current_stream().wait_stream(side)
print(doubled.sum().item(), held[1].cpu().sum().item())
group.wake()
group.sleep()
with torch.cuda.stream(side):
    held[0].add_(1)
side.synchronize()
print(held[0].sum().item())
""")


def test_a_group_that_needs_room_makes_others_sleep(checked: Checked) -> None:
    checked(
        ASLEEP
        + """
for group in groups.values():
    group.wake()
a, b, c = groups.values()
assert [here(each) for each in groups.values()] == [0, 96, 96], uvmalloc.groups()
b.configure(pinned=True)
a.wake()
assert [here(each) for each in groups.values()] == [96, 96, 0]
c.configure(priority=-1, limit='32MiB')
c.wake()
assert here(a) == here(b) == 96 and 0 < here(c) <= 32
""",
        capacity="256MiB",
    )


def test_a_groups_floor_stays_when_others_need_room(checked: Checked) -> None:
    checked(
        ASLEEP
        + """
a, b, c = groups.values()
a.configure(floor='64MiB')
for group in (a, b, c):
    group.wake()
assert here(a) == 64, uvmalloc.groups()
assert a.figures().state == 'awake'
a.sleep()
assert here(a) == 0
""",
        capacity="256MiB",
    )


def test_settings_come_from_the_variable_and_an_idle_group_sleeps(checked: Checked) -> None:
    checked(
        """
import os, time
before = len(os.listdir('/proc/self/task'))
held = tensors(), tensors()
llm = uvmalloc.group_of(held[0], name='llm')
other = uvmalloc.group_of(held[1], name='other')
assert len(os.listdir('/proc/self/task')) == before + 1
deadline = time.monotonic() + 60
while llm.figures().state != 'asleep':
    assert time.monotonic() < deadline, uvmalloc.groups()
assert llm.figures().idle_sleeps == 1 and llm.figures().device_bytes == 0
assert other.figures().state == 'awake'
llm.configure(idle=0)
llm.wake()
pid = os.fork()
if pid == 0:
    os._exit(0)  # has no thread to wait for
assert os.waitpid(pid, 0)[1] == 0
llm.configure(idle='5ms')
while llm.figures().state != 'asleep':
    assert time.monotonic() < deadline, uvmalloc.groups()
""",
        environment={"UVMALLOC_GROUPS": "llm:idle=20ms,priority=1;image:idle=5s"},
    )


def test_tensors_of_a_program_that_does_not_know_groups_sleep(same_output: Checked) -> None:
    run = same_output(
        """
import time
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    beside = torch.randn(4 << 20, device='cuda')
x = torch.randn(8, 1024, device='cuda')
torch.cuda.synchronize()
for round in range(3):
    with torch.no_grad():
        print(model(x).sum().item(), beside.sum().item())
    model(x).sum().backward()
    print(sum(p.grad.sum().item() for p in model.parameters()))
    deadline = time.monotonic() + 60
    while uvmalloc.enabled():
        figures = uvmalloc.groups()['default']
        if figures.idle_sleeps > round and figures.device_bytes == 0:
            assert figures.page_bytes >= 40 << 20, figures
            break
        assert time.monotonic() < deadline, figures
        time.sleep(0.001)
with uvmalloc.group('other') as other:
    made = torch.ones(4 << 20, device='cuda')
assert not uvmalloc.enabled() or other.figures().bytes == 16 << 20
""",
        environment={"UVMALLOC_GROUPS": "default:idle=20ms"},
    )
    assert {group["name"] for group in run.report["groups"]} == {"default", "other"}


def test_memory_that_a_move_shared_with_the_host_sleeps(same_output: Checked) -> None:
    same_output("""
with uvmalloc.group('llm') as group:
    held = torch.randn(4 << 20, device='cuda')
shared = held.cpu()
del shared
held.add_(1)
copied = held.to('cpu', copy=True)
held.add_(1)
torch.cuda.synchronize()
if uvmalloc.enabled():
    assert group.figures().page_bytes == 16 << 20
    group.sleep()
    assert group.figures().device_bytes == 0
print(held.sum().item(), copied.sum().item())
group.wake()
print(held.sum().item(), copied.sum().item())
""")


@pytest.mark.parametrize("machine", ["gh200", "h100-pcie5"])
def test_a_device_with_memory_of_its_own_gives_it_up(checked: Checked, machine: str) -> None:
    run = checked(
        """
import time
group = uvmalloc.group('llm', idle='20ms')
with group:
    held = torch.randn(16 << 20, device='cuda')
    never_touched = torch.empty(16 << 20, device='cuda')
print(held.sum().item())
torch.cuda.synchronize()
deadline = time.monotonic() + 60
while uvmalloc.residency(held, exact=True) != {'host': 64 << 20}:
    assert time.monotonic() < deadline, group.figures()
begin, sleeps = time.monotonic(), group.figures().sleeps
while time.monotonic() < begin + 0.2:
    pass
figures = group.figures()
assert figures.sleeps == sleeps > 0 and figures.device_bytes == 0, figures
assert group.wake() >= 64 << 20
group.configure(idle=0)
torch.cuda.synchronize()
assert uvmalloc.residency(held, exact=True) == {'device:0': 64 << 20}
assert group.sleep() >= 64 << 20
""",
        environment={"UVMSIM_MACHINE": machine},
    )
    assert run.report["groups"][0]["name"] == "llm"


def test_sleep_and_wake_are_in_the_history_of_memory(checked: Checked) -> None:
    checked(
        """
with uvmalloc.group('llm') as group:
    held = torch.ones(4 << 20, device='cuda:1')
group.sleep()
torch.cuda.memory._record_memory_history()
group.wake()
group.sleep()
notes = torch.cuda.memory._snapshot()['external_annotations']
assert [(each['device'], each['name'], each['stage']) for each in notes] == [
    (1, 'uvmalloc.group llm', 'wake'), (1, 'uvmalloc.group llm', 'sleep')], notes
""",
        devices=2,
    )


def test_kernels_that_use_a_waking_group_wait_for_their_own_pages(same_output: Checked) -> None:
    same_output("""
with uvmalloc.group('llm') as group:
    held = tensors(6)
side = torch.cuda.Stream()
for step in range(5):
    group.sleep()
    group.wake()
    for each in reversed(held):
        each.add_(1)
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        print(sum(each.sum().item() for each in held))
    side.synchronize()
""")


def test_groups_of_a_second_device(checked: Checked) -> None:
    checked(
        """
with uvmalloc.group('second') as group, torch.cuda.device(1):
    held = tensors(2)
total = float(held[0].sum())
assert group.sleep(device=1) == 32 * MIB
assert group.wake(device='cuda:1') == 32 * MIB
assert uvmalloc.residency(held[0]) == {'device:1': 16 * MIB}
assert float(held[0].sum()) == total
first = tensors(2)
both = uvmalloc.group('both').add(held, first)
assert both.sleep() == both.wake() == 64 * MIB
assert uvmalloc.residency(held[0]) == {'device:1': 16 * MIB}
for wrong in ('cpu', 2, 'cuda:5', -1, 'x'):
    try:
        group.sleep(device=wrong)
    except ValueError as error:
        print(error)
    else:
        raise SystemExit(f'{wrong} was accepted')
""",
        devices=2,
    )


def test_a_pool_of_the_program_and_a_graph(checked: Checked) -> None:
    checked("""
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    pooled = tensors(2)
group = uvmalloc.group('pool').add(pool)
assert group.figures().blocks == 2
x = torch.ones(16 * MIB // 4, device='cuda')
uvmalloc.group('graph').add(x)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = x + pooled[0]
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + pooled[0]
    refused(RuntimeError, 'it cannot sleep while a stream is being captured', group.sleep)
group.sleep()
uvmalloc.group('graph').sleep()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(y, x + pooled[0])
""")


def test_threads_that_sleep_and_wake_at_once_change_no_bytes(checked: Checked) -> None:
    checked("""
import threading
made = {}
for name in 'abcd':
    with uvmalloc.group(name):
        made[name] = tensors(2)
sums = {name: [each.sum().item() for each in held] for name, held in made.items()}
failures = []
def work(first):
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(12):
                name = 'abcd'[(first + i) % 4]
                uvmalloc.group(name).wake()
                if [each.sum().item() for each in made[name]] != sums[name]:
                    failures.append((first, i))
                uvmalloc.group('abcd'[(first + 2 * i) % 4]).sleep()
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=work, args=(each,)) for each in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
assert not failures, failures
""", capacity="128MiB")  # fmt: skip


def test_a_forked_child_gets_an_error_and_its_parent_goes_on(checked: Checked) -> None:
    checked("""
import os
with uvmalloc.group('llm') as group:
    held = tensors(1)
total = float(held[0].sum())
group.sleep()
child = os.fork()
if child == 0:
    try:
        group.wake()
    except RuntimeError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
group.wake()
assert float(held[0].sum()) == total
""")


def test_bad_input_names_what_is_accepted(checked: Checked) -> None:
    checked("""
group = uvmalloc.group('a')
refused(ValueError, 'accepted: 1 to 64 letters', uvmalloc.group, 'two words')
refused(ValueError, 'accepted: 1 to 64 letters', uvmalloc.group, '')
refused(TypeError, 'accepted: a str', uvmalloc.group, 3)
refused(ValueError, 'accepted: auto, kept, none', group.configure, copies='some')
refused(TypeError, 'accepted: an int', group.configure, priority=1.5)
refused(TypeError, 'accepted: a bool', group.configure, pinned=1)
refused(ValueError, 'at least 2 MiB', group.configure, limit='1MiB')
refused(TypeError, 'at least 2 MiB', group.configure, limit=2.5)
refused(ValueError, 'accepted: a size', group.configure, floor='much')
refused(TypeError, 'accepted: a size', group.configure, floor=2.5)
refused(ValueError, 'accepted: seconds', group.configure, idle=-1)
refused(ValueError, 'accepted: seconds', group.configure, idle='soon')
refused(TypeError, 'accepted: seconds', group.configure, idle=True)
refused(TypeError, 'accepted: tensors, modules', group.add, 'text')
refused(TypeError, 'accepted: tensors, modules', group.add, 5)
refused(TypeError, 'accepted: a bool', group.sleep, discard='yes')
refused(TypeError, 'accepted: a bool', group.wake, lazily=1)
refused(TypeError, 'accepted: an int', uvmalloc.group, 'new', priority='x')
refused(RuntimeError, 'without __enter__', group.__exit__)
assert 'new' not in uvmalloc.groups()
strange = [torch.empty(4, device='meta'), torch.eye(3).to_sparse(),
           torch.nn.Linear(2, 2, device='meta'),
           torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]
assert group.add(strange).figures().blocks == 0
import copy, pickle
assert pickle.loads(pickle.dumps(group)) is group and copy.deepcopy(group) is group
assert group.add(torch.empty(0, device='cuda')).figures().blocks == 0
assert group.sleep() == group.wake() == 0
""")


def test_discarded_contents_are_given_up_without_a_copy(checked: Checked) -> None:
    run = checked("""
with uvmalloc.group('cache') as group:
    held = tensors()
assert group.sleep(discard=True) == 64 * MIB
assert group.figures().state == 'discarded'
group.wake()
for each in held:
    each.fill_(1)
assert sum(float(each.sum()) for each in held) == 64 * MIB // 4
""")
    assert run.sim["migrated_bytes_to_host"] < 1 << 20


def test_an_older_driver_keeps_copies_only_if_it_is_requested(simulate: Simulate) -> None:
    simulate(
        PRELUDE
        + """
with uvmalloc.group('auto') as auto, uvmalloc.group('kept', copies='kept') as kept:
    held = tensors(2)
for group in (auto, kept):
    group.sleep()
    group.wake()
    group.sleep()
torch.cuda.synchronize()
assert kept.figures().kept_bytes == 32 * MIB and auto.figures().kept_bytes == 0
""",
        driver_version=_OLD_DRIVER,
    ).check()


def test_without_uvmalloc_groups_do_nothing(simulate: Simulate) -> None:
    run = simulate(
        PRELUDE
        + """
with uvmalloc.group('llm') as group:
    held = tensors(1)
group.add(held)
print(group.sleep(), group.wake(), group.figures().blocks, uvmalloc.groups())
""",
        native=True,
    ).check()
    assert run.stdout == "0 0 0 {}\n"


def test_tensors_that_were_created_on_the_host_sleep_once_they_are_on_the_device(
    checked: Checked,
) -> None:
    """They lie in many spans, beside each other."""
    for driver in (None, "12.2"):
        checked(
            """
with uvmalloc.group('deep') as group:
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(48)])
    kept = [torch.ones(MIB // 4) for _ in range(40)]
assert group.figures().page_bytes == 0 and group.sleep() == 0
model.cuda()
moved = group.figures().page_bytes
assert moved >= 40 * MIB
assert group.sleep() == moved and group.wake() == moved
torch.cuda.synchronize()
assert 'device:0' not in uvmalloc.residency(kept[0])
""",
            driver_version=driver,
        )


def test_pages_that_came_back_by_use_leave_again(checked: Checked) -> None:
    checked("""
with uvmalloc.group('llm') as group:
    held = tensors()
def real():
    torch.cuda.synchronize()
    return sum(uvmalloc.residency(each, exact=True).get('device:0', 0) for each in held)
for lazily in (True, False):
    group.sleep()
    if lazily:
        group.wake(lazily=True)
    total = sum(float(each.sum()) for each in held)
    assert real() == 64 * MIB
    assert group.sleep() == 64 * MIB
    assert real() == 0
""")


def test_asking_and_adding_bring_nothing_while_memory_is_short(checked: Checked) -> None:
    checked(
        """
held = tensors(12)
for each in held:
    each.add_(1)
group = uvmalloc.group('llm')
def brought():
    return uvmalloc.stats()['live_plan']['brought_pages']
before = brought()
group.add(held)
for each in held:
    uvmalloc.residency(each, exact=True)
assert brought() == before > 0
""",
        capacity="128MiB",
    )


def test_a_group_that_is_older_than_the_switch_works_after_it(simulate: Simulate) -> None:
    simulate(
        PRELUDE
        + """
group = uvmalloc.group('llm', priority=2)
torch.cuda.set_enabled_uvm(True)
with group:
    held = tensors(1)
assert uvmalloc.group('llm') is group and group.sleep() == 16 * MIB
""",
        native=True,
    ).check()


def test_groups_swap_on_a_device_that_is_short_of_memory(checked: Checked) -> None:
    """Moves are planned from the second group on."""
    checked(
        """
with uvmalloc.group('a') as a:
    first = tensors(10)
with uvmalloc.group('b') as b:
    second = tensors(10)
for each in (*first, *second):
    each.add_(1)
torch.cuda.synchronize()
sums = [each.sum().item() for each in (*first, *second)]
def real(group):
    torch.cuda.synchronize()
    return sum(uvmalloc.residency(each, exact=True).get('device:0', 0) for each in group) // MIB
for waking, others, group in ((first, second, a), (second, first, b)) * 2:
    group.wake()
    assert real(waking) >= 150, (real(waking), uvmalloc.groups())
    assert real(others) <= 100
assert sums == [each.sum().item() for each in (*first, *second)]
""",
        capacity="256MiB",
    )


def test_cached_memory_does_not_keep_a_group_away(checked: Checked) -> None:
    checked(
        """
with uvmalloc.group('llm') as group:
    held = tensors(10)
group.sleep()
torch.cuda.synchronize()
other = tensors(12)
del other
assert group.wake() == 160 * MIB
""",
        capacity="256MiB",
    )
