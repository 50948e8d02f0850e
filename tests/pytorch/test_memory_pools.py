"""Separate pools: MemPool, and the private pools and checkpoints that graph trees use."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.pytorch.conftest import Checked, Simulate


def test_a_pool_serves_what_is_allocated_inside_it_alone(same_output: Checked) -> None:
    same_output("""
import threading, torch
pool = torch.cuda.MemPool()
print(pool.id, pool.use_count(), torch.cuda.MemPool().id != pool.id)
with torch.cuda.use_mem_pool(pool):
    print(pool.use_count())
    inside = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
    small = torch.ones(10, device='cuda')
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(torch.empty(3 << 20, device='cuda')))
    thread.start(); thread.join()
print(pool.use_count())
address = inside.data_ptr()
print(small.sum().item())
blocks = lambda s: [b for g in s for b in g['blocks'] if b['state'] == 'active_allocated']
print(sorted(b['requested_size'] for b in blocks(pool.snapshot())),
      {s['segment_pool_id'] for s in pool.snapshot()} == {pool.id},
      len(blocks(torch.cuda.memory_snapshot())))
before = torch.cuda.memory_allocated() > 3 << 20
del inside
outside = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
print(before, outside.data_ptr() != address)
with torch.cuda.use_mem_pool(pool):
    again = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
print(again.data_ptr() == address)
del again, small, outside, elsewhere
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved() > 0, torch.cuda.memory_allocated())
del pool
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved())
try:
    torch._C._cuda_endAllocateToPool(0, (0, 99))
except RuntimeError as error:
    print(str(error).splitlines()[0])
nested = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(nested):
    try:
        with torch.cuda.use_mem_pool(nested):
            pass
    except RuntimeError as error:
        print('already recording' in str(error))
""")


def test_a_pool_may_help_out_or_leave_its_segments_whole(same_output: Checked) -> None:
    same_output(
        """
import torch
helper = torch.cuda.MemPool(use_on_oom=True)
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(0.5)
with torch.cuda.use_mem_pool(helper):
    spare = torch.empty(total // 4, dtype=torch.uint8, device='cuda')
address = spare.data_ptr()
del spare
big = torch.empty(total // 5, dtype=torch.uint8, device='cuda')
helped = torch.empty(total // 4, dtype=torch.uint8, device='cuda')
print(helped.data_ptr() == address)
try:
    torch.empty(total // 4, dtype=torch.uint8, device='cuda')
except torch.OutOfMemoryError:
    print('no more')
del helped, big
whole = torch.cuda.MemPool(no_split=True)
with torch.cuda.use_mem_pool(whole):
    tensors = [torch.empty(n, dtype=torch.uint8, device='cuda') for n in (100, 100, 5 << 20)]
pages = {t.data_ptr() >> 21 for t in tensors}
print(len(pages), all(t.data_ptr() % (1 << 21) == 0 for t in tensors))
""",
        capacity="4GiB",
    )


def test_a_pool_with_an_allocator_of_its_own_is_served_by_that(
    same_output: Checked, tmp_path: Path
) -> None:
    source = tmp_path / "own.cpp"
    library = tmp_path / "own.so"
    source.write_text("""
#include <cstddef>
extern "C" int cudaMalloc(void**, size_t);
extern "C" int cudaFree(void*);
static int called = 0;
extern "C" int calls() { return called; }
extern "C" void* own_alloc(size_t size, int, void*) {
  void* out = nullptr;
  cudaMalloc(&out, size);
  ++called;
  return out;
}
extern "C" void own_free(void* address, size_t, int, void*) { cudaFree(address); ++called; }
""")
    subprocess.run(["c++", "-shared", "-fPIC", "-o", library, source], check=True)
    same_output(f"""
import ctypes, torch
from torch.cuda.memory import CUDAPluggableAllocator
torch.empty(1, device='cuda')
own = CUDAPluggableAllocator('{library}', 'own_alloc', 'own_free')
pool = torch.cuda.MemPool(own.allocator())
before = torch.cuda.memory_allocated()
with torch.cuda.use_mem_pool(pool):
    inside = torch.ones(3 << 20, dtype=torch.uint8, device='cuda')
outside = torch.ones(3 << 20, dtype=torch.uint8, device='cuda')
calls = ctypes.CDLL('{library}').calls
print(calls(), inside.sum().item(), torch.cuda.memory_allocated() - before)
print(pool.use_count(), {{s['segment_pool_id'] == pool.id for s in pool.snapshot()}})
del inside, pool
torch.cuda.empty_cache()
print(calls())
""")


CHECKPOINT = """
import os, torch
torch.cuda.init()
C = torch._C
pool = torch.cuda.graph_pool_handle()
device = 0
make = lambda n: torch.empty(n, dtype=torch.uint8, device='cuda')
addresses = lambda tensors: {t.untyped_storage().data_ptr() for t in tensors}
C._cuda_beginAllocateCurrentThreadToPool(device, pool)
a, b, c = make(100), make(3 << 20), make(30_000)
b.fill_(7)
state = C._cuda_getCheckpointState(device, pool)
print(C._cuda_checkPoolLiveAllocations(device, pool, addresses([a, b, c])),
      C._cuda_checkPoolLiveAllocations(device, pool, addresses([a, b])))
where = [t.data_ptr() for t in (a, b, c)]
metadata = dict(nbytes=c.untyped_storage().nbytes(), data_ptr=c.data_ptr(), size=c.shape,
                stride=c.stride(), dtype=c.dtype, device=c.device, storage_offset=0)
del c
d = make(50_000)
e = make(9 << 20)
C._cuda_endAllocateToPool(device, pool)
print(C._has_Standard_Deleter(d.untyped_storage()._cdata))
stale = [t.untyped_storage()._cdata for t in (d, e)]
revived = C._construct_CUDA_Tensor_From_Storage_And_Metadata(
    metadata, C._construct_storage_from_data_pointer(where[2], torch.device('cuda', 0),
                                                     metadata['nbytes']))
C._cuda_setCheckpointPoolState(device, state, stale, [revived.untyped_storage()._cdata])
print(C._cuda_checkPoolLiveAllocations(device, pool, set(where)))
print([t.data_ptr() for t in (a, b, revived)] == where, b.sum().item() == 7 * (3 << 20))
live = torch.cuda.memory_stats()['allocation.all.current']
del d, e
print(live, torch.cuda.memory_stats()['allocation.all.current'])
try:
    C._cuda_setCheckpointPoolState(device, state, [], [])
    print('again')
except RuntimeError as error:
    print(str(error).splitlines()[0])
C._cuda_beginAllocateCurrentThreadToPool(device, pool)
more = make(40_000)
C._cuda_endAllocateToPool(device, pool)
try:
    C._cuda_setCheckpointPoolState(device, state, [], [])
except RuntimeError as error:
    print(str(error).splitlines()[0], flush=True)
os._exit(0)  # the memory of `more` is gone: torch's own allocator ends the program when it is freed
"""


def test_a_checkpoint_brings_blocks_back_to_their_addresses(same_output: Checked) -> None:
    same_output(CHECKPOINT)


def test_what_does_not_exist_is_refused(simulate: Simulate) -> None:
    simulate("""
import torch
C = torch._C
torch.empty(1, device='cuda')
for ask in (lambda: C._cuda_releasePool(0, (0, 9)),
            lambda: C._cuda_getCheckpointState(0, (0, 9)),
            lambda: C._cuda_beginAllocateCurrentThreadToPool(0, (3, 4)),
            lambda: C._cuda_beginAllocateCurrentThreadToPool(5, (0, 4)),
            lambda: torch.cuda.memory_snapshot((3, 4))):
    try:
        ask()
    except RuntimeError as error:
        assert 'pool (' in str(error) or 'device' in str(error), error
    else:
        raise AssertionError('silently accepted')
torch.empty(1 << 20, device='cuda')
""").check()


def test_of_pools_inside_each_other_the_innermost_serves(same_output: Checked) -> None:
    same_output("""
import torch
torch.zeros(1, device='cuda')
def held(pool):
    return sum(b['size'] for s in pool.snapshot() for b in s['blocks']
               if b['state'] == 'active_allocated')
older, newer = torch.cuda.MemPool(), torch.cuda.MemPool()
for outer, inner in (older, newer), (newer, older):
    with torch.cuda.use_mem_pool(outer):
        with torch.cuda.use_mem_pool(inner):
            x = torch.zeros(1 << 20, device='cuda')
        y = torch.zeros(1 << 21, device='cuda')
    print(held(outer) >> 20, held(inner) >> 20)
    del x, y
""")


def test_a_capture_inside_a_pool_keeps_its_memory_from_others(same_output: Checked) -> None:
    same_output("""
import torch
stream = torch.cuda.Stream()
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
pool = torch.cuda.MemPool()
with torch.cuda.graph(first, stream=stream):
    kept = torch.ones(1 << 20, device='cuda')
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    with torch.cuda.graph(second, pool=first.pool(), stream=stream):
        temporary = torch.full((1 << 21,), 7.0, device='cuda')
        del temporary
    with torch.cuda.stream(stream):
        mine = torch.zeros(1 << 21, device='cuda')
torch.cuda.synchronize()
second.replay()
torch.cuda.synchronize()
print(mine.sum().item())
""")


def test_a_thread_that_never_used_a_pool_may_restore_it(same_output: Checked) -> None:
    same_output("""
import os, threading, torch
calls = torch._C
torch.cuda.init()
pool = torch.cuda.graph_pool_handle()
make = lambda n: torch.empty(n, dtype=torch.uint8, device='cuda')
calls._cuda_beginAllocateCurrentThreadToPool(0, pool)
kept, gone = make(3 << 20), make(30_000)
state = calls._cuda_getCheckpointState(0, pool)
where, size = gone.data_ptr(), gone.untyped_storage().nbytes()
described = dict(nbytes=size, data_ptr=where, size=gone.shape, stride=gone.stride(),
                 dtype=gone.dtype, device=gone.device, storage_offset=0)
del gone
calls._cuda_endAllocateToPool(0, pool)
storage = calls._construct_storage_from_data_pointer(where, torch.device('cuda', 0), size)
revived = calls._construct_CUDA_Tensor_From_Storage_And_Metadata(described, storage)
def restore():
    calls._cuda_setCheckpointPoolState(0, state, [], [revived.untyped_storage()._cdata])
    print(calls._cuda_checkPoolLiveAllocations(0, pool, {kept.data_ptr(), where}), flush=True)
thread = threading.Thread(target=restore)
thread.start(); thread.join()
os._exit(0)
""")


def test_a_tensor_that_leaves_a_pool_is_no_longer_counted_there(same_output: Checked) -> None:
    same_output("""
import torch
MIB = 1 << 20
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.ones(4 * MIB, dtype=torch.uint8, device='cuda')
live = lambda segments: sum(
    b['requested_size'] for s in segments for b in s['blocks'] if b['state'] == 'active_allocated')
print(torch.cuda.memory_allocated() // MIB, live(pool.snapshot()) // MIB)
on_host = inside.to('cpu')
del inside
torch.cuda.synchronize()
print(torch.cuda.memory_allocated() // MIB, live(pool.snapshot()) // MIB)
back = on_host.to('cuda')
print(torch.cuda.memory_allocated() // MIB, int(back.sum()) // MIB)
with torch.cuda.use_mem_pool(pool):
    again = torch.ones(4 * MIB, dtype=torch.uint8, device='cuda')
del back, on_host
print(torch.cuda.memory_allocated() // MIB, live(torch.cuda.memory_snapshot()) // MIB)
""")


# ---- pools of managed memory: uvmalloc.MemPool

PART = """
import threading, torch, uvmalloc
MIB = 1 << 20
pool = uvmalloc.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = [torch.full((32 * MIB,), n, dtype=torch.uint8, device='cuda') for n in range(4)]
for n, x in enumerate(inside):
    assert x.sum().item() == n * 32 * MIB, n
print({s['segment_pool_id'] for s in pool.snapshot()} == {pool.id})
"""


def test_one_part_of_a_program_has_more_memory_than_the_device(checked: Checked) -> None:
    run = checked(
        PART
        + """
print(uvmalloc.enabled())
try:
    torch.empty(128 * MIB, dtype=torch.uint8, device='cuda')
except torch.OutOfMemoryError:
    print('the rest has not')
side = torch.cuda.Stream()
with torch.cuda.stream(side), torch.cuda.use_mem_pool(pool):
    on_side = torch.ones(8 * MIB, dtype=torch.uint8, device='cuda')
    on_side.record_stream(torch.cuda.current_stream())
side.synchronize()
print(on_side.sum().item() == 8 * MIB)
sums = []
def work():
    with torch.cuda.use_mem_pool(pool):
        sums.append(torch.ones(4 * MIB, dtype=torch.uint8, device='cuda').sum().item())
threads = [threading.Thread(target=work)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sums == [4 * MIB])
del inside, on_side, x
del pool
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved())
""",
        native=True,
        capacity="96MiB",
    )
    assert run.stdout.split("\n") == [
        "True", "False", "the rest has not", "True", "True", "0", ""
    ]  # fmt: skip
    assert run.sim["evicted_chunks"] > 0


def test_a_part_uses_the_second_device(checked: Checked) -> None:
    run = checked(
        """
import torch, uvmalloc
pool = uvmalloc.MemPool('cuda:1')
with torch.cuda.use_mem_pool(pool, device=1):
    x = torch.full((48 << 20,), 3, dtype=torch.uint8, device='cuda:1')
    elsewhere = torch.ones(1 << 20, device='cuda:0')
print(x.sum(dtype=torch.int64).item() == 3 * (48 << 20), x.device)
print({s['device'] for s in pool.snapshot()})
""",
        native=True,
        devices=2,
        capacity="32MiB",
    )
    assert run.stdout == "True cuda:1\n{1}\n"


def test_under_uvmalloc_the_part_is_a_private_pool(checked: Checked) -> None:
    run = checked(PART + "print(uvmalloc.enabled(), inside[0].is_managed())", capacity="96MiB")
    assert run.stdout == "True\nTrue True\n"
    assert run.report["native_allocations"]["device"] == 0


def test_a_part_beyond_the_budget_raises_torchs_error(checked: Checked) -> None:
    run = checked(
        """
import torch, uvmalloc
pool = uvmalloc.MemPool()
try:
    with torch.cuda.use_mem_pool(pool):
        torch.empty(256 << 20, dtype=torch.uint8, device='cuda')
except torch.OutOfMemoryError as error:
    print('CUDA out of memory' in str(error))
with torch.cuda.use_mem_pool(pool):
    print(torch.ones(32 << 20, dtype=torch.uint8, device='cuda').sum().item() == 32 << 20)
""",
        native=True,
        environment={"UVMALLOC_BUDGET": "64MiB", "UVMALLOC_LOG": "info"},
    )
    assert run.stdout == "True\nTrue\n"
    assert "a pool gets no memory: " in run.stderr
    assert "UVMALLOC_BUDGET" in run.stderr


def test_a_pool_that_cannot_be_made_says_why(checked: Checked) -> None:
    checked(
        """
import torch, uvmalloc
try:
    uvmalloc.MemPool()
except RuntimeError as error:
    assert str(error).startswith("MemPool: ") and "hip" in str(error), error
else:
    raise SystemExit('a pool was made')
for wrong in ('cpu', 7, 'cuda:3', 1.5):
    try:
        uvmalloc.MemPool(wrong)
    except ValueError as error:
        assert str(error).startswith('MemPool: '), error
    else:
        raise SystemExit(wrong)
torch.ones(3, device='cuda')
""",
        native=True,
        environment={"UVMALLOC_RUNTIME": "hip"},
    )
