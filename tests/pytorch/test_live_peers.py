"""Programs with pages that move to another device of the process, over a fast link."""

from __future__ import annotations

import json
from typing import Any

from tests.pytorch.conftest import Simulate, SimulatedRun

# Twelve layers of 2 MiB each, with momentum: 36 MiB that last, and activations. From step
# `sys.argv[2]` on, each step uses `sys.argv[3]` MiB of the other device.
TRAINING = """
import ctypes, json, sys, torch
simulator = ctypes.CDLL("libuvmsim.so")
simulator.uvmsim_now_ns.restype = ctypes.c_uint64
torch.manual_seed(0)
torch.set_num_threads(1)
steps, begin, own_mib = (int(each) for each in sys.argv[1:4])
torch.zeros(1, device=f"cuda:{torch.cuda.device_count() - 1}")
width, layers = 724, 12
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
losses, times = [], []
others = []
for step in range(steps):
    torch.cuda.synchronize()
    times.append(simulator.uvmsim_now_ns())
    if step == begin:
        others = [torch.zeros(1 << 18, device="cuda:1") for _ in range(own_mib)]
    for other in others:
        other.add_(1)
    x = torch.randn(64, width).to("cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
torch.cuda.synchronize()
times.append(simulator.uvmsim_now_ns())
there = 0
for other in others:
    size_bytes = ctypes.c_size_t()
    address = ctypes.c_void_p(other.data_ptr())
    simulator.uvmsim_residency(address, ctypes.c_size_t(1 << 20), 1, ctypes.byref(size_bytes))
    there += size_bytes.value
sums = [other.sum().item() for other in others]
last_ns = times[-1] - times[-4]
print(json.dumps({"losses": losses, "last_ns": last_ns, "there": there, "sums": sums}))
"""
STEPS = 12
NEVER = 1 << 20


def train(
    simulate: Simulate,
    machine: str,
    devices: int,
    capacity: str = "48MiB",
    steps: int = STEPS,
    begin: int = NEVER,
    own_mib: int = 0,
) -> tuple[dict[str, Any], SimulatedRun]:
    run = simulate(
        TRAINING, str(steps), str(begin), str(own_mib), capacity=capacity, devices=devices,
        policy="planned", environment={"UVMSIM_MACHINE": machine},
    ).check()  # fmt: skip
    return json.loads(run.stdout), run


def test_pages_leave_over_a_fast_link_and_steps_are_shorter(simulate: Simulate) -> None:
    enough, _ = train(simulate, "h100-sxm-nvlink", 1, capacity="1GiB")
    alone, _ = train(simulate, "h100-sxm-nvlink", 1)
    beside, run = train(simulate, "h100-sxm-nvlink", 2)
    assert run.report["live_plan"]["pages_to_peers"] > 50
    assert run.sim["migrated_bytes_between_devices"] > 100 << 20
    assert beside["losses"] == alone["losses"] == enough["losses"]
    assert beside["last_ns"] < 0.8 * alone["last_ns"]


def test_over_a_slow_link_pages_leave_to_the_host(simulate: Simulate) -> None:
    alone, _ = train(simulate, "h100-pcie5", 1)
    beside, run = train(simulate, "h100-pcie5", 2)
    assert run.report["live_plan"]["evicted_pages"] > 0
    assert run.report["live_plan"]["pages_to_peers"] == 0
    assert run.sim["migrated_bytes_between_devices"] == 0
    assert beside["losses"] == alone["losses"]


def test_a_peer_that_needs_its_memory_gets_it_and_keeps_it(simulate: Simulate) -> None:
    needs = {"begin": 8, "own_mib": 42}
    figures, run = train(simulate, "h100-sxm-nvlink", 2, steps=STEPS, **needs)
    longer, later = train(simulate, "h100-sxm-nvlink", 2, steps=STEPS + 4, **needs)
    assert run.report["live_plan"]["pages_to_peers"] > 0
    # In the last steps, no page moves to or from the peer, and all memory of the peer is there.
    counter = "migrated_bytes_between_devices"
    assert later.sim[counter] == run.sim[counter]
    assert figures["there"] == longer["there"] == 42 << 20
    assert figures["sums"] == [(STEPS - 8) * float(1 << 18)] * 42
    assert longer["losses"][:STEPS] == figures["losses"]
