"""Models of several benchmarks, and what they generate tokens with. Weights are random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from train_gpt import GPT


class WordModel(nn.Module):
    """Predicts the next word with a recurrent network."""

    def __init__(
        self, words: int, width: int, hidden: int, layers: int, batch_first: bool = False
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.recurrent = nn.LSTM(width, hidden, num_layers=layers, batch_first=batch_first)
        self.head = nn.Linear(hidden, words)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.recurrent(self.words(words))[0])

    def following(
        self, words: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Continues from the state after the words before, and returns the new state too."""
        x, state = self.recurrent(self.words(words), state)
        return self.head(x), state


class Decoder(nn.Module):
    """A language model of PyTorch's own layers."""

    def __init__(self, words: int, width: int, layers: int, recompute: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, dropout=0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)
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
