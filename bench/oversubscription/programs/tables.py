"""Programs that train on rows of tables."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.oversubscription.programs import Step

COLUMNS, CLASSES, SAMPLES = 256, 10, 64


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def evaluation() -> Step:
    """Trains a deep dense network, and counts the hits on other samples after each fourth step."""
    width = 1280
    model = nn.Sequential(
        nn.Linear(COLUMNS, width), *(_Layer(width) for _ in range(14)), nn.Linear(width, CLASSES)
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    held_out = [torch.randn(4 * SAMPLES, COLUMNS).to("cuda") for _ in range(2)]
    kinds = [torch.randint(CLASSES, (4 * SAMPLES,)).to("cuda") for _ in held_out]
    numbers = itertools.count(1)

    @torch.no_grad()
    def hits() -> int:
        model.eval()
        found = [
            (model(x).argmax(1) == kind).sum() for x, kind in zip(held_out, kinds, strict=True)
        ]
        model.train()
        return int(torch.stack(found).sum())

    def step() -> str:
        x = torch.randn(SAMPLES, COLUMNS).to("cuda")
        loss = F.cross_entropy(model(x), torch.randint(CLASSES, (SAMPLES,)).to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result = loss.item().hex()
        return f"{result} {hits()}" if next(numbers) % 4 == 0 else result

    return step


def zipf_rows() -> Step:
    """Trains only the rows that a batch looks up. Few rows of each table are looked up often."""
    tables, rows, width, samples = 8, 96_000, 128, 256
    vectors = [torch.randn(rows, width).to("cuda") for _ in range(tables)]
    model = nn.Sequential(nn.Linear(tables * width, 512), nn.ReLU(), nn.Linear(512, 1)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    often = 1 / torch.arange(1, rows + 1)

    def step() -> str:
        drawn = torch.multinomial(often, tables * samples, replacement=True).view(tables, samples)
        looked_up = drawn.to("cuda")
        used = [
            table.index_select(0, row).requires_grad_()
            for table, row in zip(vectors, looked_up, strict=True)
        ]
        clicks = torch.randint(2, (samples,)).float().to("cuda")
        loss = F.binary_cross_entropy_with_logits(model(torch.cat(used, dim=1)).squeeze(1), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for table, row, part in zip(vectors, looked_up, used, strict=True):
            table.index_add_(0, row, part.grad, alpha=-0.01)
        return loss.item().hex()

    return step
