"""Runs the examples of RFC-0023, changed only to be valid Python. Prints the failed ones.

Run it under uvmalloc; `scripts/bench --pytorch` runs it and counts failures. Each example runs for
a small and a large tensor, with `enabled_uvm_move_on_copy` set.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable

import torch

SIZES = {"small": 16, "large": 1 << 20}


def ordinary(size: int) -> torch.Tensor:
    """Returns an ordinary CPU tensor, the RFC's "original tensor"."""
    tensor = torch.arange(size, dtype=torch.float32).unmanage_memory()
    assert not tensor.is_managed()
    return tensor


def same_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()


def is_enabled(size: int) -> None:
    torch.cuda.set_enabled_uvm(True)
    assert torch.cuda.get_enabled_uvm() is True
    assert torch.empty(max(size, 1 << 20)).is_managed(), "newly created tensors are managed"
    assert torch.empty(size, device="cuda").is_managed()


def copy_forced(size: int) -> None:
    dtype = torch.float32
    for tensor in (ordinary(size), ordinary(size).manage_memory()):
        result = tensor.to(dtype=dtype, device="cpu", copy=True)
        assert result is not tensor and not same_memory(result, tensor)
        assert result.device.type == "cpu" and torch.equal(result, tensor)


def dtype_change_copies(size: int) -> None:
    tensor = ordinary(size).to(torch.float64).manage_memory()
    result = tensor.to(device="cuda:0", copy=False, dtype=torch.float32)
    assert result.dtype == torch.float32 and result.device == torch.device("cuda:0")
    result.zero_()
    torch.cuda.synchronize()
    assert torch.equal(tensor, torch.arange(size, dtype=torch.float64)), "a copy was required"


def manage_memory(size: int) -> None:
    tensor = ordinary(size)
    result = tensor.manage_memory()
    assert result.is_managed() and not tensor.is_managed() and not same_memory(result, tensor)
    assert result.device == tensor.device and torch.equal(result, tensor)


def to_device_moves(size: int) -> None:
    tensor = ordinary(size)
    copied = tensor.to(device="cuda:0")
    assert not same_memory(copied, tensor), "not managed: a copy"
    managed = tensor.manage_memory()
    moved = managed.to(device="cuda:0")
    assert moved.device == torch.device("cuda:0") and same_memory(moved, managed)
    moved += 1
    torch.cuda.synchronize()
    assert torch.equal(managed, tensor + 1), "the same memory"


def to_host_without_synchronising(size: int) -> None:
    tensor = ordinary(size).manage_memory().to(device="cuda:0")
    result = tensor.to(device="cpu", non_blocking=True)
    torch.cuda.synchronize()
    assert result.device.type == "cpu" and same_memory(result, tensor)
    assert torch.equal(result, torch.arange(size, dtype=torch.float32))


def unmanage_memory(size: int) -> None:
    for device in ("cpu", "cuda:0"):
        tensor = ordinary(size).manage_memory().to(device)
        result = tensor.unmanage_memory()
        assert tensor.is_managed() and not result.is_managed()
        assert result.device == tensor.device and torch.equal(result.cpu(), tensor.cpu())


def to_with_manage(size: int) -> None:
    tensor = ordinary(size)
    for device in ("cpu", "cuda:0"):
        result = tensor.to(device=device, manage=True)
        assert result.is_managed() and result.device == torch.device(device)
        assert torch.equal(result.cpu(), tensor)
    managed = tensor.manage_memory()
    assert same_memory(managed.to(device="cuda:0", manage=True), managed), "managed already"


def uvm_to(size: int) -> None:
    torch.cuda.set_enabled_uvm_move_on_copy(False)
    try:
        tensor = ordinary(size).manage_memory()
        moved = tensor.uvm_to(device="cuda:0")
        assert moved.is_cuda and same_memory(moved, tensor)
    finally:
        torch.cuda.set_enabled_uvm_move_on_copy(True)


EXAMPLES: tuple[Callable[[int], None], ...] = (
    is_enabled,
    copy_forced,
    dtype_change_copies,
    manage_memory,
    to_device_moves,
    to_host_without_synchronising,
    unmanage_memory,
    to_with_manage,
    uvm_to,
)


def main() -> None:
    torch.cuda.set_enabled_uvm(True)
    torch.cuda.set_enabled_uvm_move_on_copy(True)
    failed = []
    for example in EXAMPLES:
        for name, size in SIZES.items():
            try:
                example(size)
            except Exception:
                traceback.print_exc(file=sys.stderr)
                failed.append(f"{example.__name__}, {name}")
    print(json.dumps({"examples": len(EXAMPLES) * len(SIZES), "failed": failed}))


if __name__ == "__main__":
    main()
