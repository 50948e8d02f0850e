"""Trains on batches that are loaded, prepared and moved while the last one is computed.

    uvmalloc sim -- python examples/pipeline_training.py [--memory 8MiB]

The data are the handwritten digits that scikit-learn brings. The items of all stages together stay
within the memory that is given.
"""

from __future__ import annotations

import argparse

import torch
import uvmalloc
from sklearn.datasets import load_digits
from torch.nn import functional


def prepare(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = batch
    return functional.interpolate(images[:, None] / 16, size=32, mode="bilinear"), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", default="8MiB", help="what all items together may take")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(32 * 32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    peak_bytes = 0
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(images)).split(64)
        batches = uvmalloc.pipeline(
            ((images[part], labels[part]) for part in order),
            prepare,
            ("move", lambda batch: tuple(tensor.to(device) for tensor in batch)),
            memory=arguments.memory,
            item_bytes="1MiB",
        )
        total = 0.0
        for inputs, wanted in batches:
            loss = functional.cross_entropy(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        peak_bytes = max(peak_bytes, batches.peak_bytes)
        print(f"epoch {epoch}: loss {total / len(order):.4f}")
    print(f"items took at most {peak_bytes / 2**20:.2f} MiB, of {arguments.memory}")


if __name__ == "__main__":
    main()
