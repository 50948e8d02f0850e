"""A program that uses few of its weights in a step, and chooses them by the data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.oversubscription.programs import Step


class Experts(nn.Module):
    """A layer whose router chooses two experts for each token. `used_bytes` counts the weights of
    the chosen experts, in all passes.
    """

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.used_bytes = 0

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = F.softmax(self.router(x), dim=-1).topk(2, dim=-1)
        result = x.clone()
        for expert in chosen.unique().tolist():
            token, place = torch.where(chosen == expert)
            made = F.silu(x[token] @ self.up[expert]) @ self.down[expert]
            result.index_add_(0, token, made * shares[token, place, None])
            self.used_bytes += (self.up[expert].numel() + self.down[expert].numel()) * 4
        return F.layer_norm(result, x.shape[-1:])


class _Answers:
    """Steps that count the weights of the chosen experts."""

    def __init__(self) -> None:
        self.layers = nn.Sequential(*(Experts(512, 1024, 64) for _ in range(2)))
        self.layers.to("cuda").requires_grad_(False)

    def __call__(self) -> str:
        return self.layers(torch.randn(4, 512).to("cuda")).abs().sum().item().hex()

    @property
    def used_bytes(self) -> int:
        return sum(layer.used_bytes for layer in self.layers)


def experts() -> Step:
    """Answers four tokens a step, which use at most 8 of the 64 experts of each layer."""
    return _Answers()
