"""Prints, as JSON, torch's CUDA allocator and its nanoseconds per cache-hit pair by size."""

import ctypes
import json
import sys

import torch

ITERATIONS = 20_000


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    measure = library.uvmalloc_bench_torch_pair_ns
    measure.restype = ctypes.c_double
    measure.argtypes = [ctypes.c_size_t, ctypes.c_int]
    torch.empty(1, device="cuda")
    sizes = [int(size) for size in sys.argv[2:]]
    print(
        json.dumps(
            {
                "allocator": torch.cuda.get_allocator_backend(),
                "pair_ns": {size: measure(size, ITERATIONS) for size in sizes},
            }
        )
    )


if __name__ == "__main__":
    main()
