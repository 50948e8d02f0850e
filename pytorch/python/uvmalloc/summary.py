"""A summary of memory for people, in the form of torch.cuda.memory_summary().

Importing this module imports neither torch nor a native library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvmalloc.memory import cuda_index, enabled, stats
from uvmalloc.sizes import format_size

if TYPE_CHECKING:
    import torch

_WIDTH = 75


def memory_summary(device: torch.device | int | str | None = None) -> str:
    """Returns a table of the memory in use, for people to read.

    The first line of figures is that of `device` (None: the current one). The others are those of
    the process: host, pinned and device memory, what moved, and the budget. "Live" is what tensors
    and other blocks hold, "cached" is free memory that uvmalloc keeps, "allocated" adds up all
    allocations. Waits for nothing. Any thread may call. stats() has the same figures and more.

    Returns one line if the program runs without uvmalloc. Raises ValueError for a device that does
    not exist.
    """
    if not enabled():
        return "uvmalloc is not switched on in this program\n"
    import torch

    index = cuda_index(device, "memory_summary")
    of_device = torch.cuda.memory_stats(index)
    report = stats()
    live = of_device["allocated_bytes.all.current"]
    rows = [
        (f"device {index}", live, of_device["allocated_bytes.all.peak"],
         of_device["allocated_bytes.all.allocated"],
         of_device["reserved_bytes.all.current"] - live),
        *(
            (words, kind["live_bytes"], kind["peak_bytes"], kind["allocated_bytes"],
             kind["cached_bytes"])
            for words, kind in (
                ("all device memory", report["facades"]["device"]),
                ("pinned host memory", report["facades"]["pinned"]),
                ("host memory", report["facades"]["host"]),
            )
        ),
    ]  # fmt: skip
    moves, prefetches = report["moves"], report["prefetches"]
    on_device = report["devices"][index]
    lines = [
        "=" * _WIDTH,
        f" uvmalloc memory summary, device {index} ({on_device['name']})",
        "-" * _WIDTH,
        f" out of memory: {report['out_of_memory']:,} times | "
        f"budget of the process: {format_size(report['budget_bytes'])}",
        "=" * _WIDTH,
        _row("Memory", "Live", "Peak", "Allocated", "Cached"),
        "-" * _WIDTH,
        *(_row(words, *map(format_size, sizes)) for words, *sizes in rows),
        "-" * _WIDTH,
        f" pages on device {index}: {format_size(on_device['believed_bytes'])} of "
        f"{format_size(on_device['total_bytes'])}",
        f" moved without a copy: {format_size(moves['bytes'])} in {moves['total']:,} moves",
        f" copied by moves: {format_size(report['copies_by_moves']['bytes'])}",
        f" prefetched: {format_size(prefetches['bytes'])} in {prefetches['sent']:,} prefetches",
        "=" * _WIDTH,
    ]
    return "".join(f"|{line:<{_WIDTH}}|\n" for line in lines)


def _row(first: str, *cells: str) -> str:
    return f" {first:<20} |" + " |".join(f"{cell:>11}" for cell in cells) + " "
