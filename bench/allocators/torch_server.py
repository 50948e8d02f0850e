"""Answers requests with torch's CUDA allocator in this process. Argument 1 is the module of
`engine_torch.cpp`.
"""

import ctypes
import sys

import torch


def main() -> None:
    torch.empty(1, device="cuda")  # the first use of the device creates torch's allocators
    if torch.cuda.get_allocator_backend() != "native":
        sys.exit(f"bench: torch's allocator is {torch.cuda.get_allocator_backend()}, not native")
    ctypes.CDLL(sys.argv[1]).uvmalloc_bench_engine_serve()


if __name__ == "__main__":
    main()
