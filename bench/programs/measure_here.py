"""Prints, as JSON, seconds of moves and allocations in this process.

The same program runs with torch's own allocators and under uvmalloc. Its tensors hold zeros, and
all their pages were written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch


def median_seconds(repeats: int, prepare, run) -> float:
    """Returns the median time of `run` on the result of `prepare`, which is called each time."""
    samples = []
    for _ in range(repeats):
        prepared = prepare()
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = run(prepared)
        samples.append(time.perf_counter() - start)
        del kept, prepared
    return statistics.median(samples)


def move_of(size_bytes: int, repeats: int, warm: bool) -> float:
    """Returns the seconds that the caller spends in `x.to("cuda")`.

    Filling `x` evicts everything else from the processor's caches. With `warm`, another move of 2
    MiB in between brings the code of a move back.
    """

    def prepare() -> torch.Tensor:
        x = torch.zeros(size_bytes, dtype=torch.uint8)
        if warm:
            torch.zeros(2 << 20, dtype=torch.uint8).to("cuda")
        return x

    return median_seconds(repeats, prepare, lambda x: x.to("cuda"))


def many_parameters(layers: int) -> torch.nn.Module:
    """Returns five parameters per layer: a matrix of 1 MiB, a bias, and those of the norms."""

    def layer() -> torch.nn.Module:
        return torch.nn.ModuleList(
            [torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.RMSNorm(512)]
        )

    return torch.nn.ModuleList(layer() for _ in range(layers))


def empty_and_free(size: int, repeats: int) -> float:
    """Returns the seconds of a `torch.empty` on the device and its free."""
    for _ in range(repeats // 10):
        torch.empty(size, device="cuda")
    start = time.perf_counter()
    for _ in range(repeats):
        torch.empty(size, device="cuda")
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--move-bytes", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.empty(1, device="cuda")
    print(
        json.dumps(
            {
                "allocator": torch.cuda.get_allocator_backend(),
                "move": move_of(options.move_bytes, options.repeats, warm=True),
                "cold_move": move_of(options.move_bytes, options.repeats, warm=False),
                "module": median_seconds(
                    options.repeats,
                    lambda: many_parameters(options.layers),
                    lambda model: model.to("cuda"),
                ),
                "empty": empty_and_free(1024, 2000 * options.repeats),
            }
        )
    )


if __name__ == "__main__":
    main()
