"""Trains a workload on the device for as many steps as the argument says, each with a mark.

`python -m bench.oversubscription.steps_here WORKLOAD STEPS`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import uvmalloc
from torch import nn

from bench.traces.workloads import resnet18

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from train_gpt import GPT, train_step

EMBEDDING, LAYERS, HEADS, CONTEXT, SEQUENCES = 256, 4, 8, 256, 4
IMAGES, CHANNELS, IMAGE_SIZE, CLASSES = 64, 3, 32, 10


def gpt() -> Callable[[], None]:
    """The demo's GPT, with the default AdamW of PyTorch."""
    model = GPT(EMBEDDING, LAYERS, HEADS, CONTEXT).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        shape = (SEQUENCES, CONTEXT + 1)
        tokens = torch.randint(model.tokens.num_embeddings, shape).to("cuda")
        train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:])

    return step


def cnn() -> Callable[[], None]:
    """ResNet-18 for small images, with momentum."""
    model: nn.Sequential = resnet18().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        images = torch.randn(IMAGES, CHANNELS, IMAGE_SIZE, IMAGE_SIZE).to("cuda")
        labels = torch.randint(CLASSES, (IMAGES,)).to("cuda")
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


WORKLOADS = {"gpt": gpt, "cnn": cnn}


def main() -> None:
    torch.manual_seed(0)
    step = WORKLOADS[sys.argv[1]]()
    for number in range(int(sys.argv[2])):
        uvmalloc.mark(f"step {number}")
        step()
        torch.cuda.synchronize()
    uvmalloc.mark("end")


if __name__ == "__main__":
    main()
