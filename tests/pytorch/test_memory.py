"""What torch reports about memory, and what happens when memory runs out."""

from __future__ import annotations

from tests.pytorch.conftest import Simulate

TRAIN = """
import torch, torch.nn as nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).to('cuda')
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(256, 1024, generator=torch.Generator().manual_seed(1)).to('cuda')
for step in range(4):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


def test_a_model_half_again_as_large_as_the_device_trains_to_the_same_losses(
    simulate: Simulate,
) -> None:
    ample = simulate(TRAIN).check()
    footprint = ample.report["facades"]["device"]["peak_bytes"]
    capacity = str(footprint * 2 // 3 >> 21 << 21)
    native = simulate(TRAIN, native=True, capacity=capacity)
    assert native.returncode != 0 and "OutOfMemoryError" in native.stderr
    small = simulate(TRAIN, capacity=capacity).check()
    assert small.stdout == ample.stdout == simulate(TRAIN, native=True).check().stdout
    assert small.sim["evicted_chunks"] > 0


def test_beyond_a_hard_budget_the_error_is_caught_and_the_program_goes_on(
    simulate: Simulate,
) -> None:
    run = simulate(
        """
import torch
weight = torch.ones(1024, 1024, device='cuda')
size = 1 << 16
while True:
    try:
        result = torch.ones(size, 1024, device='cuda') @ weight
        break
    except torch.OutOfMemoryError as error:
        assert 'UVMALLOC_BUDGET' in str(error) and 'budget of 256 MiB' in str(error), error
        size //= 2
print(size, weight.sum().item(), result[0, 0].item())
""",
        budget="256MiB",
    ).check()
    assert run.stdout == "16384 1048576.0 1024.0\n"
    assert run.report["out_of_memory"] == 2
    assert run.report["peak_touched_bytes"] <= 256 << 20


def test_a_devices_budget_bounds_it_whatever_fraction_the_program_asks_for(
    simulate: Simulate,
) -> None:
    run = simulate(
        """
import torch
MIB = 1 << 20
total = torch.cuda.get_device_properties(0).total_memory
def fits(mib):
    try:
        torch.empty(mib * MIB, dtype=torch.uint8, device='cuda')
        return True
    except torch.OutOfMemoryError as error:
        text = str(error)
        assert 'The limit of device 0' in text and 'UVMALLOC_DEVICE_BUDGET' in text, text
        return text.split(' allowed; ')[0].split('is free. ')[1]
print(torch.cuda.mem_get_info()[0] // MIB, fits(256), fits(258))
kept = torch.empty(56 * MIB, dtype=torch.uint8, device='cuda')
host = torch.empty(512 * MIB, dtype=torch.uint8)
try:
    host.to('cuda')
    raise AssertionError('a move counts too')
except torch.OutOfMemoryError as error:
    assert 'UVMALLOC_DEVICE_BUDGET' in str(error), error
host[:1024].to('cuda').max()  # a part counts for nobody, the result's page for the device
print(torch.cuda.mem_get_info()[0] // MIB, fits(202))
del kept
for fraction in (128 * MIB / total, 512 * MIB / total, 1.0):
    torch.cuda.set_per_process_memory_fraction(fraction)
    print(fits(130), fits(258))
""",
        environment={"UVMALLOC_DEVICE_BUDGET": "256MiB"},
    ).check()
    assert run.stdout.splitlines() == [
        "256 True 256.00 MiB",
        "198 256.00 MiB",
        "128.00 MiB 128.00 MiB",
        "True 256.00 MiB",
        "True 256.00 MiB",
    ]


def test_torch_memory_figures_are_filled(simulate: Simulate) -> None:
    simulate("""
import torch
x = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
assert torch.cuda.memory_allocated() == 3 << 20
assert torch.cuda.max_memory_allocated() == 3 << 20
assert torch.cuda.memory_reserved() >= 3 << 20
y = torch.empty(100, dtype=torch.uint8, device='cuda')
stats = torch.cuda.memory_stats()
assert stats['allocated_bytes.small_pool.current'] == 512
assert stats['requested_bytes.all.current'] == (3 << 20) + 100
assert stats['allocation.all.current'] == 2
segments = torch.cuda.memory_snapshot()
assert sum(s['allocated_size'] for s in segments) == (3 << 20) + 512
del x, y
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_reserved() == 0
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 0
pinned = torch.empty(1 << 20, pin_memory=True)
assert torch.cuda.host_memory_stats()['active_bytes.current'] == 4 << 20
torch.cuda.memory_summary()
""").check()


def test_freed_memory_is_free_while_another_tensor_lives(simulate: Simulate) -> None:
    simulate(
        """
import torch
kept = torch.ones(1000, device='cuda')
free = torch.cuda.mem_get_info()[0]
large = torch.ones(100 << 18, device='cuda')
assert torch.cuda.mem_get_info()[0] == free - (100 << 20)
del large
torch.cuda.empty_cache()
assert torch.cuda.mem_get_info()[0] == free
large = torch.ones(100 << 18, device='cuda')
assert torch.cuda.mem_get_info()[0] == free - (100 << 20)
""",
        environment={"UVMSIM_CAPACITY": "512MiB"},
    ).check()


def test_scalars_and_tensors_can_be_read_when_the_budget_is_used_up(simulate: Simulate) -> None:
    simulate(
        """
import torch
tensors = []
for mib in (64, 8, 2):
    try:
        while True:
            tensors.append(torch.full((mib << 18,), 3.0, device='cuda'))
    except torch.OutOfMemoryError:
        pass
assert torch.cuda.memory_allocated() == 200 << 20
assert tensors[0][5].item() == 3
assert tensors[0][:4].tolist() == [3, 3, 3, 3]
assert str(tensors[0]) == "tensor([3., 3., 3.,  ..., 3., 3., 3.], device='cuda:0')"
del tensors[0]
assert torch.zeros(16 << 20, dtype=torch.uint8, device='cuda').sum().item() == 0
""",
        environment={"UVMALLOC_BUDGET": "200MiB"},
    ).check()


def test_blocks_behind_record_stream_do_not_spill_to_the_host(simulate: Simulate) -> None:
    simulate(
        """
import torch
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    y = torch.zeros(4 << 20, device='cuda')
for _ in range(100):
    x = torch.empty(4 << 20, device='cuda')
    with torch.cuda.stream(stream):
        y += x
    x.record_stream(stream)
    del x
assert torch.cuda.max_memory_reserved() == 496 << 20, torch.cuda.max_memory_reserved()
""",
        environment={"UVMSIM_CAPACITY": "512MiB"},
    ).check()


def test_the_budget_is_no_more_than_the_machine_has(simulate: Simulate) -> None:
    simulate(
        """
import torch, uvmalloc
torch.ones(1, device='cuda')
meminfo = dict(line.split(':') for line in open('/proc/meminfo'))
assert uvmalloc.stats()['budget_bytes'] < int(meminfo['MemTotal'].split()[0]) << 10
""",
        environment={"UVMSIM_CAPACITY": "64GiB", "UVMSIM_DEVICES": "2"},
    ).check()


def test_record_stream_holds_a_block_until_the_stream_is_through(simulate: Simulate) -> None:
    simulate("""
import torch
side = torch.cuda.Stream()
x = torch.empty(1 << 20, device='cuda')
address = x.data_ptr()
with torch.cuda.stream(side):
    torch.cuda._sleep(100_000_000)
x.record_stream(side)
del x
y = torch.empty(1 << 20, device='cuda')
assert y.data_ptr() != address
side.synchronize()
z = torch.empty(1 << 20, device='cuda')
assert z.data_ptr() == address
""").check()


def test_a_pinned_block_that_a_copy_still_reads_is_not_used_again(simulate: Simulate) -> None:
    simulate("""
import torch
device = torch.empty(1 << 20, device='cuda')
x = torch.empty(1 << 20, pin_memory=True)
address = x.data_ptr()
torch.cuda._sleep(100_000_000)
device.copy_(x, non_blocking=True)
del x
y = torch.empty(1 << 20, pin_memory=True)
assert y.data_ptr() != address
torch.cuda.synchronize()
z = torch.empty(1 << 20, pin_memory=True)
assert z.data_ptr() == address
""").check()


def test_sharing_device_memory_between_processes_says_what_to_do_instead(
    simulate: Simulate,
) -> None:
    simulate("""
import torch
x = torch.ones(1 << 20, device='cuda')
try:
    x.share_memory_().untyped_storage()._share_cuda_()
except NotImplementedError as error:
    assert 'PYTORCH_ENABLE_UNIFIED_MEMORY=0' in str(error), error
else:
    raise AssertionError('silently accepted')
assert x.sum().item() == 1 << 20
""").check()
