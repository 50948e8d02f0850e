"""PyTorch's expandable segments on the simulated device: reserved addresses that torch maps itself,
with torch's allocator, and without effect under uvmalloc."""

from __future__ import annotations

import json

import pytest

from tests.pytorch.conftest import Simulate

PROGRAM = """
import json, torch
torch.manual_seed(0)
torch.set_num_threads(1)
layers = torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.Adam(model.parameters())
side = [torch.cuda.Stream() for _ in range(24)]
losses = []
for step in range(8):
    x = torch.randn(64 + 32 * step, 512).cuda()
    with torch.cuda.stream(side[3 * step]):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        kept = [torch.ones(1 << 18, device="cuda") for _ in range(step)]
    torch.cuda.current_stream().wait_stream(side[3 * step])
    loss = model(x).square().mean() + sum(each[0] for each in kept) * 0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
    torch.cuda.empty_cache()
segments = torch.cuda.memory_snapshot()
print(json.dumps([losses, all(segment["is_expandable"] for segment in segments)]))
"""


@pytest.mark.fresh_start
@pytest.mark.parametrize("capacity", ["1GiB", "80GiB"])
def test_training_is_the_same_with_and_without_them(simulate: Simulate, capacity: str) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    native, are_expandable = json.loads(
        simulate(PROGRAM, native=True, capacity=capacity, environment=settings).check().stdout
    )
    assert are_expandable
    plain = simulate(PROGRAM, native=True, capacity=capacity).check()
    served = simulate(PROGRAM, capacity=capacity, environment=settings).check()
    assert native == json.loads(plain.stdout)[0] == json.loads(served.stdout)[0]
