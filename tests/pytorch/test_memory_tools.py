"""torch's memory figures and tools report the same as without uvmalloc."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.pytorch.conftest import Checked, Simulate


def test_figures_have_the_same_names_and_where_defined_the_same_values(
    same_output: Checked,
) -> None:
    same_output("""
import torch
keep = [torch.empty(n, dtype=torch.uint8, device='cuda') for n in (1, 700, 3_000, 12 << 20)]
gone = torch.empty(20 << 20, dtype=torch.uint8, device='cuda')
del gone, keep[1]
stats = torch.cuda.memory_stats()
print(sorted(stats))
defined = ('allocation.', 'allocated_bytes.', 'active.', 'active_bytes.', 'requested_bytes.',
           'num_alloc_retries', 'num_ooms', 'num_sync_all_streams', 'oversize', 'max_split_size')
show = lambda: print({k: v for k, v in torch.cuda.memory_stats().items() if k.startswith(defined)})
show()
torch.cuda.reset_peak_memory_stats()
show()
torch.cuda.reset_accumulated_memory_stats()
show()
del keep
torch.cuda.empty_cache()
show()
print(torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved() > 0)
print({k.split('.')[0] for k in torch.accelerator.memory.memory_stats()} ==
      {k.split('.')[0] for k in torch.cuda.memory_stats()},
      torch.accelerator.max_memory_allocated() == torch.cuda.max_memory_allocated(),
      torch.accelerator.memory_reserved())
for ask in (torch.cuda.memory_stats, torch.cuda.reset_peak_memory_stats):
    try:
        ask(7)
    except Exception as error:
        print(type(error))
""")


def test_private_pools_have_figures_of_their_own(same_output: Checked) -> None:
    """torch 2.15 and later. Torch reserves 20 MiB at a time, uvmalloc 2 MiB."""
    same_output("""
import torch
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    kept = torch.empty(40 << 20, dtype=torch.uint8, device='cuda')
    gone = torch.empty(60 << 20, dtype=torch.uint8, device='cuda')
other = torch.empty(8 << 20, dtype=torch.uint8, device='cuda')
def show(when):
    found = {key: value for key, value in torch.cuda.memory_stats().items()
             if key.startswith('reserved_bytes_by_private_pools')}
    print(when, sorted(found.items()))
show('two')
del gone, kept
show('freed')
del pool
torch.cuda.empty_cache()
show('gone')
torch.cuda.reset_peak_memory_stats()
torch.cuda.reset_accumulated_memory_stats()
print('reset', any('private_pools' in key and value
                   for key, value in torch.cuda.memory_stats().items()))
""")


def test_the_stack_of_an_allocation_is_found_by_its_address(same_output: Checked) -> None:
    """torch 2.15 and later."""
    same_output("""
import torch
if not hasattr(torch.cuda.memory, '_allocation_traceback'):
    print('this torch has no such function')
else:
    torch.cuda.memory._record_memory_history(context='all', stacks='python')
    def allocate():
        return torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
    x = allocate()
    frames = torch.cuda.memory._allocation_traceback(x.data_ptr())
    print([frame['name'] for frame in frames][:2])
    print(torch.cuda.memory._allocation_traceback(x.data_ptr() + 512))
    address = x.data_ptr()
    del x
    print(torch.cuda.memory._allocation_traceback(address))
""")


def test_the_snapshot_adds_up_to_the_figures(simulate: Simulate) -> None:
    simulate("""
import random, torch
random.seed(3)
live = []
side = torch.cuda.Stream()
torch.cuda._sleep(1)
def check():
    stats = torch.cuda.memory_stats()
    sums = {f'{figure}.{pool}.current': 0
            for figure in ('allocation', 'active', 'allocated_bytes', 'active_bytes',
                           'requested_bytes', 'reserved_bytes')
            for pool in ('all', 'small_pool', 'large_pool')}
    def add(figure, segment, amount):
        for pool in ('all', segment['segment_type'] + '_pool'):
            sums[f'{figure}.{pool}.current'] += amount
    for segment in torch.cuda.memory_snapshot():
        assert segment['total_size'] == sum(block['size'] for block in segment['blocks'])
        address = segment['address']
        for block in segment['blocks']:
            assert block['address'] == address
            address += block['size']
            add('allocation', segment, block['state'] == 'active_allocated')
            add('active', segment, block['state'].startswith('active'))
        add('allocated_bytes', segment, segment['allocated_size'])
        add('active_bytes', segment, segment['active_size'])
        add('requested_bytes', segment, segment['requested_size'])
        add('reserved_bytes', segment, segment['total_size'])
    assert {name: stats[name] for name in sums} == sums
for step in range(300):
    if random.random() < 0.55 or not live:
        live.append(torch.empty(int(2 ** random.uniform(0, 24)), dtype=torch.uint8, device='cuda'))
    else:
        tensor = live.pop(random.randrange(len(live)))
        if random.random() < 0.3:
            with torch.cuda.stream(side):
                torch.cuda._sleep(10_000_000)
            tensor.record_stream(side)
        del tensor
    if step % 20 == 0:
        check()
active = torch.cuda.memory_stats()['active_bytes.all.current']
assert active > torch.cuda.memory_allocated(), 'no block waited for the side stream'
torch.cuda.synchronize()
live.clear()
torch.cuda.empty_cache()
check()
assert torch.cuda.memory_stats()['active_bytes.all.current'] == 0
""").check()


HISTORY = """
import json, torch
from torch.cuda import memory
def make(n):
    return torch.empty(n, dtype=torch.uint8, device='cuda')
before = make(6 << 20)
memory._record_memory_history(**OPTIONS)
first = make(5 << 20)
second = make(100)
del first
del before
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(100_000_000)
second.record_stream(side)
del second
torch.cuda.synchronize()
memory._set_memory_metadata('step 1')
assert memory._get_memory_metadata() == 'step 1'
third = make(7 << 20)
del third
snapshot = memory._snapshot()
entries = []
for entry in snapshot['device_traces'][0]:
    names = [frame['name'] for frame in entry.get('frames', ()) if frame['filename'] == '<string>']
    if not entry['action'].startswith('segment'):
        entries.append((entry['action'], entry['size'], names, entry['user_metadata'],
                        entry['stream'] == 0, entry['time_us'] > 1_600_000_000_000_000))
print(json.dumps(entries))
"""


def test_the_history_tells_what_torch_tells(same_output: Checked) -> None:
    def entries(options: str) -> list[Any]:
        return json.loads(same_output(HISTORY.replace("OPTIONS", options)).stdout)

    everything = entries("{}")
    assert [entry[0] for entry in everything].count("alloc") == 3
    assert ["make", "<module>"] in [entry[2] for entry in everything]
    assert "step 1" in [entry[3] for entry in everything]
    assert len(entries("dict(stacks='python', max_entries=3)")) == 3
    without_stacks = entries("dict(context=None)")
    assert len(without_stacks) == len(everything)
    assert not any(entry[2] for entry in without_stacks)
    skipped = entries("dict(skip_actions=['free_requested'])")
    assert "free_requested" not in {entry[0] for entry in skipped}


def test_metadata_is_of_the_thread_that_sets_it(same_output: Checked) -> None:
    same_output("""
import threading, torch
from torch.cuda import memory
torch.cuda.init()
memory._record_memory_history(stacks='python')
memory._set_memory_metadata('mine')
seen = []
def other():
    seen.append(memory._get_memory_metadata())
    memory._set_memory_metadata('another thread')
    seen.append(torch.empty(3 << 20, device='cuda'))
thread = threading.Thread(target=other)
thread.start()
thread.join()
x = torch.empty(5 << 20, device='cuda')
print(repr(seen[0]), memory._get_memory_metadata())
print([entry['user_metadata'] for entry in memory._snapshot()['device_traces'][0]
       if entry['action'] == 'alloc'])
""")


def test_a_note_on_a_block_is_in_the_history(same_output: Checked) -> None:
    run = same_output("""
import torch
from torch.cuda import memory
torch.cuda.init()
def entries(**options):
    memory._record_memory_history(stacks='python', **options)
    memory._set_memory_metadata('of the block')
    x = torch.empty(5_000_001, dtype=torch.uint8, device='cuda')
    base = x.data_ptr()
    memory._set_memory_metadata('later')
    memory._annotate_tensor(x[100:], 'a note')
    memory._annotate_tensor(x, 'another')
    for address in (torch.ones(3).data_ptr(), base + 512):
        try:
            torch._C._cuda_annotateMemory(address, 'of nothing')
        except RuntimeError as error:
            print(str(error) == f'annotateMemory: no live allocation found at pointer {address:#x}')
    print(memory._get_memory_metadata())
    for entry in memory._snapshot()['device_traces'][0]:
        names = [frame['name'] for frame in entry.get('frames', ())]
        if not entry['action'].startswith('segment'):
            print(entry['action'], entry['size'], entry['addr'] == base, entry['user_metadata'],
                  entry['stream'], entry['pool_id'], names)
    memory._record_memory_history(enabled=None)
if hasattr(memory, '_annotate_tensor'):
    print(memory._memory_metadata_supported())
    memory._annotate_tensor(torch.empty(3, device='cuda'), 'nobody records')
    for context in ('all', 'alloc', 'state', None):
        entries(context=context)
    entries(skip_actions=['annotate'])
else:
    print('no notes')
""")
    assert "annotate 5000001 True a note" in run.stdout or run.stdout == "no notes\n"


def test_a_recording_is_read_and_drawn_by_torch_itself(simulate: Simulate) -> None:
    simulate("""
import pickle, tempfile, torch
from torch.cuda import _memory_viz, memory
memory._record_memory_history()
with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
    inside = torch.empty(3 << 20, device='cuda')
live = torch.empty(1000, device='cuda')
gone = torch.empty(30 << 20, dtype=torch.uint8, device='cuda')
del gone
torch.cuda.empty_cache()
with tempfile.NamedTemporaryFile(suffix='.pickle') as file:
    memory._dump_snapshot(file.name)
    snapshot = pickle.load(open(file.name, 'rb'))
actions = [entry['action'] for entry in snapshot['device_traces'][0]]
assert {'alloc', 'free_requested', 'free_completed', 'segment_map', 'segment_unmap'} <= set(actions)
mapped = sum(e['size'] * {'segment_map': 1, 'segment_unmap': -1}.get(e['action'], 0)
             for e in snapshot['device_traces'][0])
assert mapped == torch.cuda.memory_reserved(), (mapped, torch.cuda.memory_reserved())
for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot):
    assert 'html' in draw(snapshot)
assert 'alloc' in _memory_viz.trace(snapshot)
reserved = 'total_reserved: %.1fMiB' % (torch.cuda.memory_reserved() / 2**20)
assert reserved in _memory_viz.segsum(snapshot)
blocks = [b for s in snapshot['segments'] for b in s['blocks'] if b['state'] == 'active_allocated']
assert len(blocks) == 2 and all('<module>' in [f['name'] for f in b['frames']] for b in blocks)
assert {s['segment_pool_id'] for s in snapshot['segments']} == {(0, 0), (0, 1)}
memory._record_memory_history(enabled=None)
assert memory._snapshot()['device_traces'] == [[]]
del live
""").check()


def test_in_state_mode_stacks_are_kept_of_what_lives_and_no_events(same_output: Checked) -> None:
    same_output("""
import torch
from torch.cuda import memory
memory._record_memory_history('state', context='state', stacks='python')
def make():
    return torch.empty(3 << 20, device='cuda')
live, gone = make(), make()
del gone
snapshot = memory._snapshot()
blocks = [b for s in snapshot['segments'] for b in s['blocks'] if b['state'] == 'active_allocated']
print([[f['name'] for f in b['frames'] if f['filename'] == '<string>'] for b in blocks])
print(len(snapshot['device_traces'][0]) <= 1)
try:
    memory._record_memory_history('everything')
except Exception as error:
    print(type(error), error)
""")


def test_the_profiler_sees_memory_of_both_sides(same_output: Checked) -> None:
    run = same_output("""
import torch
from torch.profiler import ProfilerActivity, profile
torch.empty(1, device='cuda')
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
    host = torch.empty(5 << 20, dtype=torch.uint8)
    device = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
    del host, device
for event in sorted(run.key_averages(), key=lambda event: event.key):
    if event.self_cpu_memory_usage or event.self_device_memory_usage:
        print(event.key, event.self_cpu_memory_usage, event.self_device_memory_usage)
""")
    assert str(5 << 20) in run.stdout and str(3 << 20) in run.stdout


def test_a_program_beyond_its_fraction_gets_an_error_that_programs_recognise(
    same_output: Checked,
) -> None:
    same_output(
        """
import re, torch
seen = []
torch._C._cuda_attach_out_of_memory_observer(lambda *what: seen.append(what))
print(torch.cuda.get_per_process_memory_fraction())
torch.cuda.set_per_process_memory_fraction(0.25)
print(torch.cuda.get_per_process_memory_fraction())
total = torch.cuda.get_device_properties(0).total_memory
fits = torch.empty(total // 8, dtype=torch.uint8, device='cuda')
del fits  # cached: given back before anything fails
big = torch.empty(total // 5, dtype=torch.uint8, device='cuda')
try:
    torch.empty(total // 10, dtype=torch.uint8, device='cuda')
except torch.OutOfMemoryError as error:
    print(isinstance(error, torch.cuda.OutOfMemoryError), isinstance(error, RuntimeError))
    print(re.match(r'CUDA out of memory. Tried to allocate .* MiB. GPU 0 has a total capacity of '
                   r'.* GiB of which .* GiB is free.', str(error)) is not None)
    print(re.search(r'[\\d.]+ MiB allowed; ', str(error)).group())
    del error
pages = -(-(total // 10) // 2**21)
print(len(seen), seen[0][0], seen[0][1] == pages * 2**21, seen[0][2] == total // 4)
print(torch.cuda.memory_stats()['num_ooms'])
torch.cuda.set_per_process_memory_fraction(1.0)
torch.empty(total // 10, dtype=torch.uint8, device='cuda')
for bad in (-0.5, 1.5, 'much'):
    try:
        torch.cuda.set_per_process_memory_fraction(bad)
    except Exception as error:
        print(type(error), error)
try:
    torch.empty(1 << 61, dtype=torch.uint8, device='cuda')
except Exception as error:
    print(type(error), error)
""",
        capacity="4GiB",
    )


def test_raw_blocks_come_and_go(same_output: Checked) -> None:
    same_output("""
import torch
address = torch.cuda.caching_allocator_alloc(5 << 20)
print(torch.cuda.memory_allocated())
side = torch.cuda.Stream()
other = torch.cuda.caching_allocator_alloc(3 << 20, stream=side)
print(torch.cuda.memory_allocated(), torch.cuda.caching_allocator_alloc(0))
torch.cuda.caching_allocator_delete(address)
torch.cuda.caching_allocator_delete(other)
print(torch.cuda.memory_allocated())
largest = torch._C._cuda_getAllocator is not None
print(largest, torch.cuda.get_allocator_backend() in ('native', 'uvmalloc'))
""")


def test_blocks_given_to_a_users_trace_are_reported(same_output: Checked) -> None:
    same_output("""
import torch
import torch.cuda._gpu_trace as trace
reported = []
trace.register_callback_for_memory_allocation(lambda address: reported.append(('+', address)))
trace.register_callback_for_memory_deallocation(lambda address: reported.append(('-', address)))
torch._C._activate_gpu_trace()
tensor = torch.empty(3 << 20, device='cuda')
address = tensor.data_ptr()
del tensor
print([(sign, at == address) for sign, at in reported])
""")


def test_a_tensor_that_was_moved_counts_for_the_device_until_it_is_freed(
    simulate: Simulate,
) -> None:
    simulate("""
import torch
x = torch.ones(4 << 20)
y = x.to('cuda')
assert torch.cuda.memory_allocated() == 16 << 20
del x, y
assert torch.cuda.memory_allocated() == 0
z = torch.empty(4 << 20, device='cuda')
assert torch.cuda.memory_allocated() == 16 << 20
assert torch.cuda.memory_reserved() == 16 << 20, torch.cuda.memory_reserved()
assert sum(s['allocated_size'] for s in torch.cuda.memory_snapshot()) == 16 << 20
free, total = torch.cuda.mem_get_info()
assert torch.accelerator.memory.get_memory_info() == (free, total)
assert 0 < free < total == torch.cuda.get_device_properties(0).total_memory
""").check()


FREE = """
import ctypes, json, torch
cuda = ctypes.CDLL('libcudart.so.13', ctypes.RTLD_GLOBAL)
driver = ctypes.CDLL('libcuda.so.1', ctypes.RTLD_GLOBAL)
preloaded = ctypes.CDLL(None)

def ask(library, name):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert getattr(library, name)(ctypes.byref(free), ctypes.byref(total)) == 0
    return [free.value, total.value]

torch.cuda.init()
torch.cuda.set_device(0)
meminfo = open('/proc/meminfo').read().split()
kib = {name: int(meminfo[meminfo.index(name + ':') + 1]) for name in ('MemFree', 'MemAvailable')}
held = torch.ones(25 << 20, device='cuda')
print(json.dumps({
    'torch': torch.cuda.mem_get_info(),
    'accelerator': torch.accelerator.memory.get_memory_info(),
    'runtime': ask(preloaded, 'cudaMemGetInfo'),
    'driver': ask(preloaded, 'cuMemGetInfo_v2'),
    'not_served': [ask(cuda, 'cudaMemGetInfo'), ask(driver, 'cuMemGetInfo_v2')],
    'properties': torch.cuda.get_device_properties(0).total_memory,
    'available': kib['MemAvailable'] << 10,
}))
"""


def free_memory(simulate: Simulate, **options: Any) -> dict[str, Any]:
    """Returns what each interface reports after 100 MiB were taken; all must report the same."""
    found = json.loads(simulate(FREE, **options).check().stdout)
    free, total = found["torch"]
    assert total == found["properties"]
    for name in ("accelerator", "runtime", "driver"):
        # Free memory of an integrated device is the host's, which other programs use, too.
        assert abs(found[name][0] - free) < 1 << 30, (name, found)
        assert found[name][1] == total
    return {"free": free, "total": total, **found}


def test_free_memory_of_a_discrete_device_is_the_drivers_within_the_budget(
    simulate: Simulate,
) -> None:
    left = (1024 - 16 - 100) << 20  # the context takes 16 MiB
    found = free_memory(simulate, capacity="1GiB")
    assert found["free"] == found["not_served"][0][0] == found["not_served"][1][0] == left
    found = free_memory(simulate, capacity="1GiB", budget="300MiB")
    assert found["free"] == 200 << 20
    assert found["not_served"][0][0] == left
    assert free_memory(simulate, capacity="1GiB", native=True)["free"] == left


def test_free_memory_of_an_integrated_device_is_the_hosts_within_the_budget(
    simulate: Simulate,
) -> None:
    integrated = {"UVMSIM_PROFILE": "integrated"}
    found = free_memory(simulate, capacity="64TiB", environment=integrated)
    # The automatic budget leaves 512 MiB; other programs take and give memory meanwhile.
    assert abs(found["free"] - found["available"]) < 2 << 30
    found = free_memory(simulate, capacity="64TiB", budget="300MiB", environment=integrated)
    assert found["free"] == 200 << 20
    # If a device claims less memory than the host has, the claim counts.
    assert free_memory(simulate, capacity="1GiB", environment=integrated)["free"] == 1 << 30


def test_a_wrong_address_is_an_error_of_the_raw_interface(same_output: Checked) -> None:
    same_output("""
import torch
address = torch.cuda.caching_allocator_alloc(8 << 20)
torch.cuda.caching_allocator_delete(address)
for wrong in (address,):
    try:
        torch.cuda.caching_allocator_delete(wrong)
        print('nothing')
    except RuntimeError as error:
        print(str(error).split(':')[0])
""")


@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
def test_settings_of_torchs_own_allocators_do_no_harm(simulate: Simulate, backend: str) -> None:
    run = simulate(
        """
import torch
torch.cuda.init()
held = torch.ones(1 << 20, device='cuda')
segments = torch.cuda.memory_snapshot()
print(torch.cuda.get_allocator_backend(), held.sum().item(), len(segments) > 0)
torch.cuda.empty_cache()
""",
        environment={"PYTORCH_CUDA_ALLOC_CONF": f"backend:{backend}"},
    ).check()
    assert run.stdout.split()[1:] == ["1048576.0", "True"]
    assert run.report["facades"]["device"]["allocations"] > 0


def test_a_destroyed_streams_memory_is_not_given_to_the_next_of_its_handle(
    simulate: Simulate,
) -> None:
    simulate(
        """
import ctypes, torch
torch.cuda.init()
preloaded, cudart = ctypes.CDLL(None), ctypes.CDLL('libcudart.so.13')
ours, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert preloaded.uvmalloc_process_allocator(ctypes.byref(ours)) == 0
assert cudart.cudaStreamCreate(ctypes.byref(stream)) == 0
def allocate():
    block = ctypes.c_void_p()
    status = preloaded.uvmalloc_allocate(
        ours, 2, 0, ctypes.c_size_t(100_000), ctypes.c_size_t(0), stream, ctypes.byref(block))
    assert status == 0
    return block
first = allocate()
assert preloaded.uvmalloc_free(ours, first) == 0
again = allocate()
assert again.value == first.value
assert preloaded.uvmalloc_free(ours, again) == 0
assert preloaded.cudaStreamDestroy(stream) == 0
assert allocate().value != first.value
"""
    ).check()


def test_pages_that_emptying_the_cache_gives_back_have_the_callers_stack(
    simulate: Simulate,
) -> None:
    simulate("""
import torch
from torch.cuda import memory
for context in 'state', 'alloc', 'all':
    memory._record_memory_history(context=context, stacks='python')
    x = torch.rand(3, 4, device='cuda'); del x
    torch.cuda.empty_cache()
    entries = [e for e in memory._snapshot()['device_traces'][0] if e['action'] == 'segment_unmap']
    assert entries, context
    for entry in entries:
        names = [frame['name'] for frame in entry.get('frames', ())]
        assert ('empty_cache' in names) is (context == 'all'), (context, names)
    memory._record_memory_history(None)
""").check()


def test_a_variable_that_uvmalloc_does_not_follow_is_named(simulate: Simulate) -> None:
    run = simulate(
        "import torch; torch.ones(3, device='cuda')",
        environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    ).check()
    said = [line for line in run.stderr.splitlines() if "PYTORCH_NO_CUDA_MEMORY_CACHING" in line]
    assert len(said) == 1 and "has no effect: uvmalloc always caches" in said[0], run.stderr
