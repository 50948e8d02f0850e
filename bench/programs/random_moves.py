"""Runs random programs of moves, views, writes and copies. Prints every tensor's contents after
each step.

differential.py runs it with torch's own allocators and under uvmalloc; the outputs must be equal.
All numbers are small integers in float32, so that every sum is exact. Uses all devices.
"""

from __future__ import annotations

import copy
import ctypes
import random
import sys
import threading
from collections.abc import Callable

import torch

LARGE = 1 << 18  # 1 MiB of float32: such blocks move without a copy
SIZES = (16, LARGE, LARGE, LARGE + 7, 2 * LARGE)
TENSORS = 6
ROW = 4096
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
    "two_paths",
    "deepcopy",
    "state_dict",
    "move_part",
    "write_parts_in_threads",
    "move_in_threads",
]


def devices() -> list[str]:
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def elsewhere(choose: random.Random, device: torch.device) -> str:
    """Returns a device other than `device`, the host more often than any other."""
    others = [name for name in devices() if torch.device(name) != device]
    host = [name for name in others if name == "cpu"]
    return choose.choice(others if choose.random() < 0.5 or not host else host)


def in_threads(*work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def total(tensor: torch.Tensor) -> int:
    """Returns the exact sum of all elements: rows are short enough for float32."""
    flat = tensor.detach().reshape(-1)
    whole = flat.numel() // ROW * ROW
    rows = flat[:whole].view(-1, ROW).sum(1)
    return int(sum(rows.tolist()) + sum(flat[whole:].tolist()))


def fresh(choose: random.Random) -> torch.Tensor:
    device = choose.choice(("cpu", *devices()[1:]))
    tensor = torch.full((choose.choice(SIZES),), float(choose.randrange(9)), device=device)
    return tensor.reshape(-1, 1) if choose.random() < 0.2 else tensor


def step(choose: random.Random, tensors: list[torch.Tensor]) -> str:
    index, other = choose.randrange(TENSORS), choose.randrange(TENSORS)
    x = tensors[index]
    there = elsewhere(choose, x.device)
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
        case "two_paths":
            leaf = x.detach().clone().requires_grad_()
            moved = leaf.to(there)
            moved.backward(torch.ones_like(moved), retain_graph=True)
            back = (moved * 2).to(x.device) + leaf
            back.backward(x.detach())
            assert leaf.grad is not None
            tensors[other] = leaf.grad.clamp(-99, 99)
        case "deepcopy":
            tensors[other], tensors[index] = copy.deepcopy((x.to(there), x))
        case "state_dict":
            module = torch.nn.Module()
            module.register_buffer("held", x.clone())
            state = module.state_dict()
            module.to(there)
            x += 1
            module.load_state_dict(state)
            tensors[other] = module.held
        case "move_part":
            first = choose.randrange(x.shape[0])
            last = choose.randrange(first, x.shape[0]) + 1
            tensors[other] = x[first:last].to(there)
        case "write_parts_in_threads":
            tensors[other] = x.to(there)
            half = x.shape[0] // 2
            in_threads(lambda: x[:half].add_(1), lambda: x[half:].add_(2))
        case "move_in_threads":
            moved = [x, x]

            def move(slot: int) -> None:
                moved[slot] = x.to(there)
                moved[slot] += slot

            in_threads(lambda: move(0), lambda: move(1))
            tensors[index], tensors[other] = moved
    return action


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    torch.cuda.init()
    for seed in range(first, first + count):
        choose = random.Random(seed)
        tensors = [fresh(choose) for _ in range(TENSORS)]
        for number in range(30):
            action = step(choose, tensors)
            held = [f"{t.device}:{tuple(t.shape)}:{total(t)}" for t in tensors]
            print(seed, number, action, *held)
    if hasattr(torch.ops.uvmalloc, "check_invariants"):
        torch.ops.uvmalloc.check_invariants()
    # Skip Python's finalization: torch 2.15 sometimes aborts then, with its own allocators too,
    # when its autograd threads next take the interpreter lock.
    sys.stdout.flush()
    ctypes.PyDLL(None).exit(0)


if __name__ == "__main__":
    main()
