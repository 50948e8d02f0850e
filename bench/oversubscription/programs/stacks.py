"""Stacks of dense layers.

Those of the programs here are equal and on the device as a whole. offload_here.py has the same
stacks, with weights that the program itself moves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.oversubscription.programs import Step

STREAMED_LAYERS, STREAMED_WIDTH = 20, 2048
DECAYED_WIDTH = 5120
TRAINED_LAYERS, TRAINED_WIDTH = 12, 1536
ROWS, RATE = 64, 1e-4


def dense_layers(activation: Callable[[], nn.Module], *widths: int) -> nn.Sequential:
    """Returns layers of these widths, with activations between them."""
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        parts += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*parts[:-1])


def layers_on_host(layers: int, width: int) -> list[nn.Linear]:
    made = [nn.Linear(width, width) for _ in range(layers)]
    for layer in made:
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return made


def run_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.linear(x, weight, bias))


def streaming() -> Step:
    """Sends batches through frozen layers. A pass uses each weight once."""
    layers = layers_on_host(STREAMED_LAYERS, STREAMED_WIDTH)
    layers = [layer.to("cuda").requires_grad_(False) for layer in layers]

    def step() -> str:
        x = torch.randn(ROWS, STREAMED_WIDTH).to("cuda")
        for layer in layers:
            x = run_layer(x, layer.weight, layer.bias)
        return x.sum().item().hex()

    return step


def decayed() -> Step:
    """Uses each weight and writes to it, layer after layer: the page used last is needed last."""
    layers = layers_on_host(STREAMED_LAYERS, DECAYED_WIDTH)
    weights = [layer.weight.detach().to("cuda") for layer in layers]

    def step() -> str:
        x = torch.randn(ROWS, DECAYED_WIDTH).to("cuda")
        for weight in weights:
            x = torch.tanh(x @ weight)
            weight.mul_(1 - RATE)
        return x.sum().item().hex()

    return step


def dense() -> Step:
    """Trains the layers with AdamW."""
    layers = nn.ModuleList(layers_on_host(TRAINED_LAYERS, TRAINED_WIDTH)).to("cuda")
    optimizer = torch.optim.AdamW(layers.parameters(), lr=RATE)

    def step() -> str:
        x = torch.randn(ROWS, TRAINED_WIDTH).to("cuda")
        for layer in layers:
            x = run_layer(x, layer.weight, layer.bias)
        loss = x.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item().hex()

    return step
