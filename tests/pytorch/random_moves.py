"""Random programs of moves, views, writes and copies; prints what every tensor holds, step by step.

Run by test_differential.py with torch's own allocators and under uvmalloc: the output must not
differ. All numbers are small integers in float32, so that every sum is exact.
"""

from __future__ import annotations

import random
import sys

import torch

LARGE = 1 << 18  # 1 MiB of float32: such blocks move without a copy
SIZES = (16, LARGE, LARGE, LARGE + 7, 2 * LARGE)
TENSORS = 6
ACTIONS = [
    "move",
    "move",
    "move_away",
    "add",
    "write_part",
    "view",
    "clone",
    "copy_from",
    "numpy",
    "fresh",
    "drop",
    "share",
    "pointer",
    "resize",
    "save",
    "round_trip",
    "requires_grad",
]


def fresh(choose: random.Random) -> torch.Tensor:
    device = choose.choice(("cpu", "cuda"))
    tensor = torch.full((choose.choice(SIZES),), float(choose.randrange(9)), device=device)
    return tensor.reshape(-1, 1) if choose.random() < 0.2 else tensor


def step(choose: random.Random, tensors: list[torch.Tensor]) -> str:
    index, other = choose.randrange(TENSORS), choose.randrange(TENSORS)
    x = tensors[index]
    there = "cpu" if x.is_cuda else "cuda"
    action = choose.choice(ACTIONS)
    match action:
        case "move":
            tensors[other] = x.to(there, non_blocking=choose.random() < 0.3 and not x.is_cuda)
        case "move_away":
            tensors[index] = x.to(there)
        case "add":
            x += 1
        case "write_part":
            x[choose.randrange(x.shape[0])] = float(choose.randrange(9))
        case "view":
            tensors[other] = x[: max(1, x.shape[0] // 2)]
        case "clone":
            tensors[other] = x.clone()
        case "copy_from":
            y = tensors[other]
            if y.numel() == x.numel():
                x.copy_(y.reshape(x.shape))
        case "numpy":
            if not x.is_cuda:
                array = x.detach().numpy()
                tensors[other] = x.to(there)
                array[0] = 7
        case "fresh":
            tensors[index] = fresh(choose)
        case "drop":
            tensors[index] = torch.zeros(1)
            tensors[index] = fresh(choose)
        case "share":
            tensors[other] = x
        case "pointer":
            x.data_ptr()
        case "resize":
            if x.is_contiguous() and x.dim() == 1 and x.untyped_storage().resizable():
                tensors[index] = x = x.clone()
                x.resize_(x.numel() + 8)[-8:] = 1
        case "save":
            tensors[other] = x.detach().to(there, copy=True)
        case "round_trip":
            tensors[index] = x.to(there).to(x.device)
        case "requires_grad":
            leaf = x.detach().clone().requires_grad_()
            (leaf.to(there) * 2).sum().backward()
            assert leaf.grad is not None
            tensors[other] = leaf.grad
    return action


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    torch.cuda.init()
    for seed in range(first, first + count):
        choose = random.Random(seed)
        tensors = [fresh(choose) for _ in range(TENSORS)]
        for number in range(30):
            action = step(choose, tensors)
            held = [
                f"{t.device.type}:{tuple(t.shape)}:{t.double().sum().item():.0f}" for t in tensors
            ]
            print(seed, number, action, *held)
    if hasattr(torch.ops.uvmalloc, "check_invariants"):
        torch.ops.uvmalloc.check_invariants()


if __name__ == "__main__":
    main()
