"""Trains a small byte-level GPT on the source of Python's standard library.

    python train_gpt.py                       # on the GPU
    python train_gpt.py --device cpu          # the same losses, up to rounding
    python train_gpt.py --batch-size 256 --catch-oom

The corpus and the model are made on the CPU and moved with `.to(device)`; batches are slices of
the corpus on the device. Indices come from a CPU generator and there is no dropout, so no device
random numbers are involved.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256
MIB = 1 << 20
VALIDATION_BATCHES = 4


def standard_library_files() -> Iterator[Path]:
    """Python files of the standard library, in an order that does not depend on the file system."""
    for folder, subfolders, files in os.walk(Path(os.__file__).parent):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name not in {"site-packages", "dist-packages", "__pycache__"}
        )
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def read_corpus(size_bytes: int) -> Tensor:
    text = bytearray()
    for path in standard_library_files():
        text += path.read_bytes()
        if len(text) >= size_bytes:
            break
    return torch.frombuffer(text[:size_bytes], dtype=torch.uint8).clone()


class Block(nn.Module):
    """One transformer layer: causal self-attention and an MLP, both on normalised input."""

    def __init__(self, embedding: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(embedding)
        self.query_key_value = nn.Linear(embedding, 3 * embedding)
        self.attention_output = nn.Linear(embedding, embedding)
        self.mlp_norm = nn.LayerNorm(embedding)
        self.mlp = nn.Sequential(
            nn.Linear(embedding, 4 * embedding),
            nn.GELU(),
            nn.Linear(4 * embedding, embedding),
        )

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_output(attended.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    def __init__(
        self,
        embedding: int,
        layers: int,
        heads: int,
        context: int,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embedding)
        self.positions = nn.Parameter(torch.randn(context, embedding) * 0.02)
        self.blocks = nn.Sequential(*(Block(embedding, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(embedding)
        self.head = nn.Linear(embedding, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.size(1)]
        return self.head(self.norm(self.blocks(x)))


class Batches:
    """Random windows of a text on any device; the indices are drawn on the CPU."""

    def __init__(self, text: Tensor, context: int, seed: int) -> None:
        self.text = text
        self.context = context
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, batch_size: int) -> tuple[Tensor, Tensor]:
        last_start = self.text.numel() - self.context - 1
        starts = torch.randint(last_start, (batch_size,), generator=self.generator).tolist()
        windows = torch.stack([self.text[start : start + self.context + 1] for start in starts])
        windows = windows.long()
        return windows[:, :-1], windows[:, 1:]


def loss_of(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train_step(
    model: GPT, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> float:
    loss = loss_of(model, inputs, targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def try_train_step(
    model: GPT, optimizer: torch.optim.Optimizer, batches: Batches, batch_size: int
) -> float | None:
    """The loss, or None where the device has no room for a batch of this size."""
    try:
        return train_step(model, optimizer, *batches.draw(batch_size))
    except torch.OutOfMemoryError:
        return None


@torch.no_grad()
def validation_loss(model: GPT, batches: Batches, batch_size: int) -> float:
    losses = []
    for _ in range(VALIDATION_BATCHES):
        inputs, targets = batches.draw(batch_size)
        log_probabilities = F.log_softmax(model(inputs), dim=-1).cpu()
        losses.append(F.nll_loss(log_probabilities.flatten(0, 1), targets.cpu().flatten()))
    return torch.stack(losses).mean().item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--embedding", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--corpus-mib", type=int, default=8, help="size of the text")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=Path, help="write the exact losses to this JSON file")
    parser.add_argument("--times", type=Path, help="write each step's seconds to this JSON file")
    parser.add_argument(
        "--catch-oom", action="store_true", help="halve the batch when the device is out of memory"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    device = torch.device(arguments.device)
    started = time.perf_counter()

    corpus = read_corpus(arguments.corpus_mib * MIB).to(device)
    model = GPT(arguments.embedding, arguments.layers, arguments.heads, arguments.context)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    held_out = corpus.numel() // 16
    training = Batches(corpus[:-held_out], arguments.context, arguments.seed)
    validation = Batches(corpus[-held_out:], arguments.context, arguments.seed)

    losses: list[float] = []
    seconds: list[float] = []
    batch_size = arguments.batch_size
    while len(losses) < arguments.steps:
        step_started = time.perf_counter()
        if arguments.catch_oom:
            loss = try_train_step(model, optimizer, training, batch_size)
        else:
            loss = train_step(model, optimizer, *training.draw(batch_size))
        if loss is None:
            if batch_size == 1:
                raise SystemExit("out of memory with a batch of one")
            batch_size //= 2
            optimizer.zero_grad()
            torch.cuda.empty_cache()
            print(f"out of memory: going on with a batch size of {batch_size}", flush=True)
            continue
        losses.append(loss)
        seconds.append(time.perf_counter() - step_started)
        print(f"step {len(losses):4d}  loss {loss:.6f}", flush=True)

    final = validation_loss(model, validation, batch_size)
    if arguments.losses:
        arguments.losses.write_text(json.dumps([loss.hex() for loss in [*losses, final]]))
    if arguments.times:
        arguments.times.write_text(json.dumps(seconds))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"train_gpt: {parameters / 1e6:.1f} M parameters on {device}, {len(losses)} steps, "
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, validation {final:.4f}, "
        f"{time.perf_counter() - started:.1f} s"
    )


if __name__ == "__main__":
    main()
