"""Answers requests with the CUDA allocator that torch has in this process: argument 1 is the module
of `engine_torch.cpp`."""

import ctypes
import sys

import torch


def main() -> None:
    torch.empty(1, device="cuda")  # torch's allocators begin with its first use of the device
    if torch.cuda.get_allocator_backend() != "native":
        sys.exit(f"bench: torch's allocator is {torch.cuda.get_allocator_backend()}, not native")
    ctypes.CDLL(sys.argv[1]).uvmalloc_bench_engine_serve()


if __name__ == "__main__":
    main()
