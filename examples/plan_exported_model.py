"""Runs a ResNet-18 of any batch size from one planned allocation.

    python examples/plan_exported_model.py [--largest-batch 8]

Prints how large the arena is, how close it is to the least that is possible, and that the results
are those of the model, bit for bit.
"""

from __future__ import annotations

import argparse

import torch
import torchvision
import uvmalloc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest-batch", type=int, default=8)
    largest = parser.parse_args().largest_batch
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    batch = torch.export.Dim("batch", min=1, max=largest)
    program = torch.export.export(model, (torch.randn(2, 3, 96, 96),), dynamic_shapes=({0: batch},))
    planned = uvmalloc.plan_storage(program)
    bound = planned.lower_bound_bytes
    over_bound = planned.arena_bytes / bound
    print(f"arena: {planned.arena_bytes / 2**20:.2f} MiB, {over_bound:.4f} of the least possible")
    with torch.no_grad():
        for size in (1, largest, 3, 1):
            images = torch.randn(size, 3, 96, 96)
            same = torch.equal(planned(images), model(images))
            print(f"batch of {size}: {'the same bits' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
