"""Counts the pages that uvmalloc believes to be elsewhere than the driver has them.

`python -m bench.ground.residency_here WORKLOAD STEPS TAKEN_MIB` runs steps of a workload, takes
memory of the device as another program would, and runs the steps again. `location_calls` and
`hint_calls` are the driver's calls that ask for places and those for hints, in the later steps.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys

import torch
from torch import Tensor

from bench.oversubscription.live_steps_here import HINT_CALLS
from bench.oversubscription.programs import make
from bench.simulated_counters import count_calls, load_simulator

_MIB = 1 << 20
_PAGE = 2 * _MIB
_NOWHERE = -2  # UVMALLOC_PLACE_NOWHERE


class _Residency:
    """Asks by address, because an operator on a tensor would count as a use and move its pages."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.allocator = ctypes.c_void_p()
        if self.library.uvmalloc_process_allocator(ctypes.byref(self.allocator)) != 0:
            sys.exit("this process has no allocator")

    def bytes_at(self, address: int, place: int, exact: bool) -> int:
        found = ctypes.c_uint64()
        status = self.library.uvmalloc_get_residency(
            self.allocator, ctypes.c_void_p(address), ctypes.c_size_t(_PAGE), place, int(exact),
            ctypes.byref(found),
        )  # fmt: skip
        if status != 0:
            sys.exit(f"the residency of a page is not known: {status}")
        return found.value

    def is_wrong(self, address: int) -> bool:
        """A discarded page is nowhere, but the driver has its memory until it needs it."""
        if self.bytes_at(address, _NOWHERE, exact=False) != 0:
            return False
        return self.bytes_at(address, 0, exact=False) != self.bytes_at(address, 0, exact=True)


def count_pages() -> tuple[int, int]:
    """Returns the number of pages of all tensors on the device, and of those believed elsewhere."""
    torch.cuda.synchronize()
    pages: set[int] = set()
    for each in gc.get_objects():
        if isinstance(each, Tensor) and each.is_cuda and each.is_contiguous():
            begin, count = each.data_ptr(), each.numel() * each.element_size()
            pages.update(range(begin - begin % -_PAGE, begin + count - _PAGE + 1, _PAGE))
    residency = _Residency()
    return len(pages), sum(map(residency.is_wrong, pages))


def main() -> None:
    workload, steps, taken_mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    step = make(workload)
    for _ in range(steps):
        step()
    # The driver's own memory: no figure of uvmalloc counts it.
    address = ctypes.c_uint64()
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(taken_mib * _MIB)) != 0:
        sys.exit(f"the device has no {taken_mib} MiB left")
    _, wrong_at_once = count_pages()
    simulator = load_simulator()
    kinds = {"location_calls": ("cuMemGetLocationInfo",), "hint_calls": HINT_CALLS}
    before = {kind: count_calls(simulator, names) for kind, names in kinds.items()}
    for _ in range(steps):
        step()
    calls = {kind: count_calls(simulator, names) - before[kind] for kind, names in kinds.items()}
    pages, wrong = count_pages()
    print(json.dumps({"pages": pages, "wrong_at_once": wrong_at_once, "wrong": wrong, **calls}))


if __name__ == "__main__":
    main()
