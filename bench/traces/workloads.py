"""The programs that record.py traces: `workloads.py NAME` trains for a few steps on the device.

Each step begins with a mark of its number, and a last mark ends the last one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import uvmalloc
from train_gpt import GPT, VOCABULARY, train_step

DEVICE = torch.device("cuda")
EMBEDDING, HEADS, CONTEXT = 256, 8, 512
BATCH_SIZE = 8


def marked(steps: int) -> Iterator[int]:
    for step in range(steps):
        uvmalloc.mark(f"step {step}")
        yield step
    uvmalloc.mark("end")


def train_gpt(layers: int, lengths: list[int]) -> None:
    model = GPT(EMBEDDING, layers, HEADS, CONTEXT).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in marked(len(lengths)):
        tokens = torch.randint(VOCABULARY, (BATCH_SIZE, lengths[step] + 1)).to(DEVICE)
        train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:])


def transformer() -> None:
    train_gpt(layers=5, lengths=[CONTEXT] * 6)


def varying() -> None:
    """As batches of texts are, cut to the longest of each."""
    lengths = random.Random(0)
    train_gpt(layers=4, lengths=[lengths.randint(64, CONTEXT) for _ in range(24)])


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet18() -> nn.Sequential:
    """For small images: its first convolution keeps their size."""
    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [
        block
        for inputs, outputs, stride in stages
        for block in (Residual(inputs, outputs, stride), Residual(outputs, outputs, 1))
    ]
    first = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def cnn() -> None:
    model = resnet18().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in marked(6):
        images, labels = torch.randn(32, 3, 32, 32).to(DEVICE), torch.randint(10, (32,)).to(DEVICE)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


WORKLOADS: dict[str, Callable[[], None]] = {
    "transformer": transformer,
    "cnn": cnn,
    "varying": varying,
}


if __name__ == "__main__":
    torch.manual_seed(0)
    WORKLOADS[sys.argv[1]]()
