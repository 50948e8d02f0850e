"""Programs that train on sequences of tokens."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models import Decoder, WordModel
from bench.oversubscription.programs import Step

WORDS = 4096


def _draw(sequences: int, length: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(WORDS, (sequences, length + 1)).to("cuda")
    return tokens[:, :-1], tokens[:, 1:]


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def lengths() -> Step:
    """Trains on batches that are padded to their longest sequence, so each has another length."""
    model = Decoder(WORDS, 512, 5).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    longest = random.Random(0)

    def step() -> str:
        tokens, targets = _draw(2, longest.randint(16, 128))
        optimizer.zero_grad()
        loss = _loss(model(tokens), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item().hex()

    return step


def micro_batches() -> Step:
    """Adds up the gradients of two micro-batches, and computes activations again in backward."""
    model = Decoder(WORDS, 512, 5, recompute=True).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> str:
        optimizer.zero_grad()
        losses = []
        for _ in range(2):
            tokens, targets = _draw(2, 48)
            loss = _loss(model(tokens), targets) / 2
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return torch.stack(losses).sum().item().hex()

    return step


def lstm() -> Step:
    """Trains on consecutive pieces of a text: the state is carried from each piece to the next."""
    model = WordModel(WORDS, 512, 1024, layers=3).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    text = torch.randint(WORDS, (16 * 64 + 1, 8)).to("cuda")
    position, state = 0, None

    def step() -> str:
        nonlocal position, state
        piece = text[position : position + 17]
        position = (position + 16) % (text.size(0) - 1)
        logits, state = model.following(piece[:-1], state)
        state = tuple(each.detach() for each in state)
        loss = _loss(logits, piece[1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.item().hex()

    return step


def distillation() -> Step:
    """Trains a small student to predict what a large frozen teacher predicts."""
    teacher = Decoder(WORDS, 768, 8).to("cuda").eval().requires_grad_(False)
    student = Decoder(WORDS, 384, 4).to("cuda")
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)

    def step() -> str:
        tokens, targets = _draw(2, 48)
        with torch.no_grad():
            wanted = F.softmax(teacher(tokens) / 2, dim=-1)
        logits = student(tokens)
        distance = F.kl_div(F.log_softmax(logits / 2, dim=-1), wanted, reduction="batchmean")
        loss = _loss(logits, targets) + distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item().hex()

    return step
