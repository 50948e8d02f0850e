"""Puts a group to sleep in a file and wakes it, and prints the memory it keeps as JSON.

`python -m bench.groups.file_here GROUP_MIB FOLDER` under `uvmalloc sim`, on a machine whose device
reaches ordinary memory. Memory and times are real.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import uvmalloc


def _anonymous_bytes() -> int:
    """Returns the memory of the process that is no copy of a file."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not say how much memory the process has")


def _resident_bytes(addresses: list[tuple[int, int]]) -> int:
    """Returns the memory of the mappings that hold the addresses, copies of files included."""
    resident, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            begin, end = (int(each, 16) for each in words[0].split("-"))
            counts = any(first < end and begin < last for first, last in addresses)
        elif words[0] == "Rss:" and counts:
            resident += int(words[1]) << 10
    return resident


def main() -> None:
    mib, folder = int(sys.argv[1]), sys.argv[2]
    without = _anonymous_bytes()
    with uvmalloc.group("llm", file=folder) as group:
        weights = [torch.randn(64 << 18, device="cuda") for _ in range(mib // 64)]
    torch.cuda.synchronize()
    sums = [float(weight.sum()) for weight in weights]
    awake = _anonymous_bytes()
    addresses = [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in weights]
    begin = time.monotonic()
    group.sleep()
    slept = time.monotonic()
    resident = _resident_bytes(addresses)
    asleep = _anonymous_bytes()
    figures = group.figures()
    group_bytes = sum(each.nbytes for each in weights)
    woken_at = time.monotonic()
    group.wake()
    woken = time.monotonic()
    again = [float(weight.sum()) for weight in weights]
    if again != sums:
        raise RuntimeError("the weights have changed")
    begin_again = time.monotonic()
    group.sleep()
    slept_again = time.monotonic()
    print(
        json.dumps(
            {
                "group_bytes": group_bytes,
                "file_bytes": figures.file_bytes,
                "resident_bytes": resident,
                "anonymous_bytes": {"before": without, "awake": awake, "asleep": asleep},
                "kept_bytes": max(resident, group_bytes - (awake - asleep)),
                "sleep_seconds": slept - begin,
                "wake_seconds": woken - woken_at,
                "second_sleep_seconds": slept_again - begin_again,
            }
        )
    )


if __name__ == "__main__":
    main()
