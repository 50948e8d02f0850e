"""The programs traced by record.py: `workloads.py NAME` runs a few steps on the device.

Each step begins with a mark of its number, and a final mark ends the last step.
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


class Cache:
    """Keys and values of one layer, joined with those of each new token."""

    def __init__(self) -> None:
        self.keys_and_values: tuple[Tensor, ...] = ()

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        old = self.keys_and_values
        self.keys_and_values = (
            tuple(torch.cat(pair, dim=2) for pair in zip(old, new, strict=True)) if old else new
        )
        return self.keys_and_values


def next_logits(model: GPT, tokens: Tensor, caches: list[Cache], position: int) -> Tensor:
    """Returns the logits after the last of `tokens`, which follow the tokens in the caches."""
    x = model.tokens(tokens) + model.positions[position : position + tokens.size(1)]
    for block, cache in zip(model.blocks, caches, strict=True):
        query, key, value = (
            part.unflatten(-1, (block.heads, -1)).transpose(1, 2)
            for part in block.query_key_value(block.attention_norm(x)).chunk(3, dim=-1)
        )
        keys, values = cache.append(key, value)
        attended = F.scaled_dot_product_attention(query, keys, values, is_causal=tokens.size(1) > 1)
        x = x + block.attention_output(attended.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.mlp_norm(x))
    return model.head(model.norm(x[:, -1:]))


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


class WordModel(nn.Module):
    def __init__(self, words: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, embedding)
        self.recurrent = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.recurrent(self.words(tokens))[0])


def lstm() -> None:
    words = 10000
    model = WordModel(words, 400, 600).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in marked(4):
        tokens = torch.randint(words, (20, 65)).to(DEVICE)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        loss.item()


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
    """Builds ResNet-18 for small images: its first convolution keeps their size."""
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
    "gpt2": gpt2,
    "lstm": lstm,
    "varying-generation": generation,
}


if __name__ == "__main__":
    torch.manual_seed(0)
    WORKLOADS[sys.argv[1]]()
