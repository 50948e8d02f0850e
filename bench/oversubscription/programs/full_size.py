"""Programs with the sizes of full-size models, but fewer layers or tables.

docs/internals/oversubscription.md, "Workloads", has the sizes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models import Cache, next_logits, resnet18
from bench.oversubscription.programs import Step
from bench.oversubscription.programs.stacks import dense_layers

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from train_gpt import GPT, train_step

# The width, heads and context of GPT-2 medium, which has 24 layers.
EMBEDDING, LAYERS, HEADS, CONTEXT, SEQUENCES = 1024, 2, 16, 1024, 4
IMAGES, CHANNELS, IMAGE_SIZE, CLASSES = 64, 3, 32, 10
# Widths of MLPerf's recommender (DLRM), which has 26 tables of up to 40 million rows.
TABLES, ROWS, FEATURES, DENSE, SAMPLES, LOOKUPS = 8, 100_000, 128, 13, 2048, 4
PROMPT, TOKENS, PROMPTS = 256, 8, 4


def gpt() -> Step:
    """Trains the demo's GPT with layers of GPT-2 medium and PyTorch's default AdamW."""
    model = GPT(EMBEDDING, LAYERS, HEADS, CONTEXT).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> str:
        shape = (SEQUENCES, CONTEXT + 1)
        tokens = torch.randint(model.tokens.num_embeddings, shape).to("cuda")
        return train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:]).hex()

    return step


def cnn() -> Step:
    """Trains ResNet-18 for small images, with momentum."""
    model: nn.Sequential = resnet18().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def step() -> str:
        images = torch.randn(IMAGES, CHANNELS, IMAGE_SIZE, IMAGE_SIZE).to("cuda")
        labels = torch.randint(CLASSES, (IMAGES,)).to("cuda")
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item().hex()

    return step


class Recommender(nn.Module):
    """Embedding tables, with dense layers before and after their products."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS, FEATURES, mode="sum") for _ in range(TABLES)
        )
        self.bottom = dense_layers(nn.ReLU, DENSE, 512, 256, FEATURES)
        pairs = (TABLES + 1) * TABLES // 2
        self.top = dense_layers(nn.ReLU, FEATURES + pairs, 1024, 1024, 512, 256, 1)

    def forward(self, dense: Tensor, rows: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.stack(
            [x, *(table(own) for table, own in zip(self.tables, rows, strict=True))], dim=1
        )
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        first, second = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        return self.top(torch.cat([x, products[:, first, second]], dim=1)).squeeze(1)


def recommender() -> Step:
    """Predicts clicks, with dense gradients of the tables and plain SGD, table after table."""
    model = Recommender().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> str:
        dense = torch.randn(SAMPLES, DENSE).to("cuda")
        rows = [torch.randint(ROWS, (SAMPLES, LOOKUPS)).to("cuda") for _ in range(TABLES)]
        clicks = torch.randint(2, (SAMPLES,)).float().to("cuda")
        loss = F.binary_cross_entropy_with_logits(model(dense, rows), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item().hex()

    return step


def generation() -> Step:
    """Generates the tokens after prompts, with frozen weights and a cache that grows."""
    model = GPT(EMBEDDING, 2 * LAYERS, HEADS, CONTEXT).to("cuda").requires_grad_(False)

    def step() -> str:
        tokens = torch.randint(model.tokens.num_embeddings, (PROMPTS, PROMPT)).to("cuda")
        caches = [Cache() for _ in model.blocks]
        position = 0
        for _ in range(TOKENS):
            logits = next_logits(model, tokens, caches, position)
            position += tokens.size(1)
            tokens = logits.argmax(-1)
        return str(tokens.tolist())

    return step
