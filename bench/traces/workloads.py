"""The programs traced by record.py: `-m bench.traces.workloads NAME` runs a few steps of one.

Each step begins with a mark of its number, and a final mark ends the last step.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from bench.models import Cache, WordModel, next_logits, resnet18

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import uvmalloc
from train_gpt import GPT, train_step

DEVICE = torch.device("cuda")
EMBEDDING, HEADS, CONTEXT = 256, 8, 512
BATCH_SIZE = 8


def marked(steps: int) -> Iterator[int]:
    for step in range(steps):
        uvmalloc.mark(f"step {step}")
        yield step
    uvmalloc.mark("end")


def train_gpt(model: GPT, batch_size: int, lengths: list[int]) -> None:
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in marked(len(lengths)):
        shape = (batch_size, lengths[step] + 1)
        tokens = torch.randint(model.tokens.num_embeddings, shape).to(DEVICE)
        train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:])


def transformer() -> None:
    train_gpt(GPT(EMBEDDING, 5, HEADS, CONTEXT), BATCH_SIZE, [CONTEXT] * 6)


def varying() -> None:
    """Trains on batches of varying length, like texts cut to the longest of each batch."""
    lengths = random.Random(0)
    model = GPT(EMBEDDING, 4, HEADS, CONTEXT)
    train_gpt(model, BATCH_SIZE, [lengths.randint(64, CONTEXT) for _ in range(24)])


def gpt2() -> None:
    """Trains a GPT with the layers, width and vocabulary of GPT-2's smallest model."""
    train_gpt(GPT(768, 12, 12, 256, vocabulary=50257), 2, [256] * 5)


@torch.no_grad()
def generation() -> None:
    """Generates tokens, a step for each batch of prompts. Batches differ in size and length."""
    numbers = random.Random(0)
    model = GPT(512, 8, HEADS, 1024, vocabulary=32000).to(DEVICE)
    for _ in marked(8):
        prompts = torch.randint(32000, (numbers.randint(1, 16), numbers.randint(16, 400)))
        caches = [Cache() for _ in model.blocks]
        tokens, position = prompts.to(DEVICE), 0
        for _ in range(numbers.randint(8, 16)):
            logits = next_logits(model, tokens, caches, position)
            position += tokens.size(1)
            tokens = logits.argmax(-1)


def lstm() -> None:
    words = 10000
    model = WordModel(words, 400, 600, layers=2, batch_first=True).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in marked(4):
        tokens = torch.randint(words, (20, 65)).to(DEVICE)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        loss.item()


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
    "gpt2": gpt2,
    "lstm": lstm,
    "varying-generation": generation,
}


if __name__ == "__main__":
    torch.manual_seed(0)
    WORKLOADS[sys.argv[1]]()
