"""Figures and limits of devices after random moves, compared with a model of the used bytes."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import Checked, Simulate

# A block counts on the device that uses it: on the device of its last move if several do, on the
# host if none does. Storages over one block share its charge until they are written.
MODEL = """
import random
import sys
import torch
import uvmalloc

MIB = 1 << 20
DEVICES = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
HOST = torch.device("cpu")
SIZES = [2 * MIB, 2 * MIB, 4 * MIB, 6 * MIB, 16 * MIB, 34 * MIB]
MOST_TENSORS = 10
ACTIONS = ["make", "drop", "clone", "read", "write", "write", "prefetch", "empty_cache"]
ACTIONS += 6 * ["move"]
RESULT_BYTES = 512


class Block:
    def __init__(self, size, device):
        self.size = size
        self.owners = {device}
        self.devices = [device] if device != HOST else []  # the last one that it moved to is last


class Model:
    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.tensors = []  # of (tensor, block, value)
        self.peaks = dict.fromkeys(DEVICES, 0)
        self.others = {}  # bytes of the driver itself
        for device in DEVICES:
            free, total = torch.cuda.mem_get_info(device)
            self.others[device] = total - free

    def charged(self, device):
        return sum(
            block.size
            for block in {id(block): block for _, block, _ in self.tensors}.values()
            if self.place(block) == device
        )

    def users(self, block):
        return [tensor.device for tensor, other, _ in self.tensors if other is block]

    def place(self, block):
        users = self.users(block)
        return next((device for device in reversed(block.devices) if device in users), HOST)

    def pick(self):
        return self.choose.randrange(len(self.tensors))

    def make(self, device, pinned=False):
        size, value = self.choose.choice(SIZES), float(self.choose.randrange(100))
        tensor = torch.full((size // 4,), value, device=device, pin_memory=pinned)
        self.tensors.append((tensor, Block(size, device), value))

    def move(self, device, how):
        tensor, block, value = self.tensors[self.pick()]
        if tensor.device == device:
            return
        self.tensors.append((how(tensor), block, value))
        if device in block.devices:
            block.devices.remove(device)
        if device != HOST:
            block.devices.append(device)

    def write(self):
        index = self.pick()
        tensor, block, value = self.tensors[index]
        tensor.add_(1)
        if len(self.users(block)) > 1:
            block = Block(block.size, tensor.device)
        self.tensors[index] = (tensor, block, value + 1)

    def clone(self):
        tensor, block, value = self.tensors[self.pick()]
        self.tensors.append((tensor.clone(), Block(block.size, tensor.device), value))

    def read(self):
        tensor, _, value = self.tensors[self.pick()]
        assert tensor.min().item() == tensor.max().item() == value
        if tensor.is_cuda:  # the result was there for a moment
            self.note_peak(tensor.device, RESULT_BYTES)

    def note_peak(self, device, more_bytes=0):
        self.peaks[device] = max(self.peaks[device], self.charged(device) + more_bytes)

    def prefetch(self):
        tensor, _, _ = self.tensors[self.pick()]
        uvmalloc.prefetch(tensor, self.choose.choice([HOST, *DEVICES]))

    def step(self):
        choose = self.choose
        if len(self.tensors) < 2:
            action = "make"
        elif len(self.tensors) >= MOST_TENSORS:
            action = "drop"
        else:
            action = choose.choice(ACTIONS)
        match action:
            case "make":
                device = choose.choice([HOST, HOST, *DEVICES])
                self.make(device, pinned=device == HOST and choose.random() < 0.3)
            case "drop":
                del self.tensors[self.pick()]
            case "move":
                device = choose.choice([HOST, *DEVICES])
                wait = choose.random() < 0.5
                self.move(device, choose.choice([
                    lambda tensor: tensor.to(device, non_blocking=not wait),
                    lambda tensor: tensor.cpu() if device == HOST else tensor.cuda(device),
                ]))
            case "empty_cache":
                torch.cuda.empty_cache()
            case _:
                getattr(self, action)()
        return action

    def check(self, where):
        for device in DEVICES:
            charged = self.charged(device)
            allocated = torch.cuda.memory_allocated(device)
            assert allocated == charged, (where, device, "allocated", allocated, charged)
            self.note_peak(device)
            peak = torch.cuda.max_memory_allocated(device)
            assert peak == self.peaks[device], (where, device, "peak", peak, self.peaks[device])
            reserved = torch.cuda.memory_reserved(device)
            assert reserved >= charged, (where, device, "reserved", reserved, charged)
            free, total = torch.cuda.mem_get_info(device)
            used = total - free - self.others[device]
            assert used == reserved, (where, device, "used", used, reserved)

    def check_reserved(self, where):
        # What is cached goes back. What is left is pages of blocks that are used.
        for device in DEVICES:
            torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        for device in DEVICES:
            charged = self.charged(device)
            reserved = torch.cuda.memory_reserved(device)
            assert reserved == charged, (where, device, "reserved", reserved, charged)

    def check_limit(self, where):
        # Under a limit with room for 4 MiB, that much can be made or moved there, and no more.
        device, other = self.choose.sample(DEVICES, 2)
        total = torch.cuda.get_device_properties(device).total_memory
        allowed = self.charged(device) + 4 * MIB
        torch.cuda.set_per_process_memory_fraction((allowed + 0.5) / total, device)
        for mib, fits in ((4, True), (6, False)):
            source = self.choose.choice([None, HOST, other])
            here = None if source is None else torch.zeros(mib * MIB // 4, device=source)
            try:
                if here is None:
                    here = torch.zeros(mib * MIB // 4, device=device)
                else:
                    here.to(device)
                assert fits, (where, device, source, mib, "is beyond the limit")
            except torch.OutOfMemoryError:
                assert not fits, (where, device, source, mib, "is within the limit")
            if source == other:
                self.note_peak(other, mib * MIB)
            if fits:
                self.note_peak(device, mib * MIB)
            del here
        torch.cuda.set_per_process_memory_fraction(1.0, device)
"""

MOVES = (
    MODEL
    + """
torch.cuda.init()
seed, gives_back = int(sys.argv[1]), sys.argv[2] == "gives_back"
model = Model(seed)
for number in range(200):
    where = (number, model.step())
    model.check(where)
    if gives_back:
        model.check_reserved(where)
        model.check_limit(where)
torch.ops.uvmalloc.check_invariants()
"""
)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_figures_follow_random_moves(simulate: Simulate, seed: int, devices: int) -> None:
    simulate(MOVES, str(seed), "caches", devices=devices, capacity="1GiB").check()


@pytest.mark.parametrize("seed", range(4, 8))
def test_reserved_bytes_and_limits_follow_random_moves(simulate: Simulate, seed: int) -> None:
    simulate(MOVES, str(seed), "gives_back", devices=2, capacity="1GiB").check()


def test_memory_that_has_left_a_device_is_free_there(simulate: Simulate) -> None:
    simulate(
        """
import torch
torch.cuda.init()

def used():
    figures = [torch.cuda.mem_get_info(device) for device in (0, 1)]
    return [(total - free) >> 20 for free, total in figures]

others = used()
def check(*mib):
    assert [here - other for here, other in zip(used(), others)] == list(mib), (used(), others)
    assert [torch.cuda.memory_reserved(device) >> 20 for device in (0, 1)] == list(mib)

host = torch.full((4 << 20,), 1.0)
check(0, 0)
made = torch.full((4 << 20,), 1.0, device='cuda:0')
check(16, 0)
moved = host.to('cuda:1')
check(16, 16)
del host, moved
check(16, 0)
back = made.cpu()
del made
check(0, 0)
back += 1
check(0, 0)
del back
torch.cuda.empty_cache()
check(0, 0)
""",
        devices=2,
    ).check()


UNDER_A_LIMIT = """
import torch

MIB = 1 << 20
total = torch.cuda.get_device_properties(0).total_memory

def limit(mib):
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(mib * MIB / total)
"""


def test_a_step_that_keeps_its_activations_on_the_host_fits_a_limit(checked: Checked) -> None:
    checked(
        UNDER_A_LIMIT
        + """
import contextlib
graph = torch.autograd.graph
def step(hook):
    limit(80)
    x = torch.ones(2048, 1024, device="cuda", requires_grad=True)  # 8 MiB
    with hook:
        y = x
        for _ in range(24):
            y = torch.sigmoid(y)
    y.sum().backward()
    return x.grad.sum().item()
try:
    step(contextlib.nullcontext())
except torch.OutOfMemoryError:
    pass
else:
    raise SystemExit("the limit does not hold")
there = lambda t: t.to("cpu", non_blocking=True)
back = lambda t: t.to("cuda", non_blocking=True)
found = {
    step(graph.save_on_cpu()),
    step(graph.save_on_cpu(pin_memory=True)),
    step(graph.saved_tensors_hooks(there, back)),
}
limit(400)
assert len(found) == 1, found
"""
    )


def test_two_models_take_turns_under_a_limit_for_one(checked: Checked) -> None:
    checked(
        UNDER_A_LIMIT
        + """
make = lambda: torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6)))  # 24 MiB
trainer, sampler = make(), make()
x = torch.ones(4, 1024, device="cuda")
limit(40)
for _ in range(4):
    for model in (trainer, sampler):
        model.to("cuda")
        with torch.no_grad():
            model(x)
        model.to("cpu")
# A program that unloads until enough is free unloads no more than it needs.
limit(64)
loaded = [make().to("cuda"), make().to("cuda")]
unloaded = 0
while torch.cuda.memory_allocated() > 30 * MIB:
    loaded.pop().to("cpu")
    unloaded += 1
assert unloaded == 1, unloaded
"""
    )
