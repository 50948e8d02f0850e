"""Programs that train on sequences of tokens."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.oversubscription.programs import Step

WORDS = 4096


class Decoder(nn.Module):
    """A language model of PyTorch's own layers."""

    def __init__(self, width: int, layers: int, recompute: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, dropout=0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, WORDS)
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=x.device)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, mask, use_reentrant=False)
            else:
                x = layer(x, mask)
        return self.head(x)


def _draw(sequences: int, length: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(WORDS, (sequences, length + 1)).to("cuda")
    return tokens[:, :-1], tokens[:, 1:]


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def lengths() -> Step:
    """Trains on batches that are padded to their longest sequence, so each has another length."""
    model = Decoder(512, 5).to("cuda")
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
    model = Decoder(512, 5, recompute=True).to("cuda")
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


class WordModel(nn.Module):
    """Predicts the next word with a recurrent network."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.recurrent = nn.LSTM(width, hidden, num_layers=3)
        self.head = nn.Linear(hidden, WORDS)

    def forward(
        self, words: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        x, state = self.recurrent(self.words(words), state)
        return self.head(x), state


def lstm() -> Step:
    """Trains on consecutive pieces of a text: the state is carried from each piece to the next."""
    model = WordModel(512, 1024).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    text = torch.randint(WORDS, (16 * 64 + 1, 8)).to("cuda")
    position, state = 0, None

    def step() -> str:
        nonlocal position, state
        piece = text[position : position + 17]
        position = (position + 16) % (text.size(0) - 1)
        logits, state = model(piece[:-1], state)
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
    teacher = Decoder(768, 8).to("cuda").eval().requires_grad_(False)
    student = Decoder(384, 4).to("cuda")
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
