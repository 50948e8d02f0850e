"""Grows a cache of keys and values token by token, and prints its peak and copies as JSON.

`python -m bench.groups.growth_here ours|stock FIRST LAST` under `uvmalloc sim`. `stock` joins the
new part to the cache with torch.cat. `cache_bytes` are those of the last cache, `peak_bytes` the
most that the program's memory took at a time, and `copied_bytes` the parts of the cache that growth
wrote again.
"""

from __future__ import annotations

import json
import sys

import torch
import uvmalloc

_HEADS, _DEPTH = 8, 64
_TOKENS_AT_ONCE = 256


def main() -> None:
    kind, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    part = torch.randn(1, _HEADS, _TOKENS_AT_ONCE, _DEPTH, device="cuda")
    beside = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    shape = (1, _HEADS, first, _DEPTH)
    growing = uvmalloc.growing(shape, last, dim=2) if kind == "ours" else None
    cache = torch.empty(shape, device="cuda") if growing is None else growing.tensor
    copied = 0
    for _ in range(first, last, _TOKENS_AT_ONCE):
        before = cache
        cache = torch.cat((before, part), dim=2) if growing is None else growing.append(part)
        if cache.data_ptr() != before.data_ptr():
            copied += before.nbytes
        del before
    peak = torch.cuda.max_memory_allocated() - beside if growing is None else growing.held_bytes
    total = cache[:, :, first:].double().sum().item().hex()
    print(
        json.dumps(
            {
                "result": total,
                "cache_bytes": cache.nbytes,
                "peak_bytes": peak,
                "copied_bytes": copied,
            }
        )
    )


if __name__ == "__main__":
    main()
