"""Trains a convolutional network on scikit-learn's handwritten digits.

    python train_cnn.py                # on the GPU
    python train_cnn.py --device cpu   # the same losses, up to rounding

The images are enlarged on the CPU, held as CPU tensors, read by forked DataLoader workers into
pinned memory and moved to the device without blocking.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

IMAGE_SIZE = 32
TEST_IMAGES = 297


def load_images() -> TensorDataset:
    digits = load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(small, size=IMAGE_SIZE, mode="bilinear", align_corners=False)
    return TensorDataset(images, torch.tensor(digits.target))


def make_model() -> nn.Sequential:
    def stage(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    return nn.Sequential(
        stage(1, 16),
        stage(16, 32),
        stage(32, 64),
        nn.Flatten(),
        nn.Linear(64 * (IMAGE_SIZE // 8) ** 2, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def make_loader(
    images: Dataset[tuple[Tensor, ...]],
    device: torch.device,
    arguments: argparse.Namespace,
    shuffle: bool,
) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(
        images,
        batch_size=arguments.batch_size,
        shuffle=shuffle,
        generator=torch.Generator().manual_seed(arguments.seed),
        num_workers=arguments.workers,
        multiprocessing_context="fork" if arguments.workers else None,
        pin_memory=device.type == "cuda",
    )


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[Tensor, ...]],
    device: torch.device,
) -> list[float]:
    model.train()
    losses = []
    for images, labels in loader:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(
    model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], device: torch.device
) -> float:
    model.eval()
    right = total = 0
    for images, labels in loader:
        predictions = model(images.to(device, non_blocking=True)).argmax(1).cpu()
        right += int((predictions == labels).sum())
        total += labels.numel()
    return right / total


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a CNN on handwritten digits.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2, help="processes that read the images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=Path, help="write the exact losses to this JSON file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    device = torch.device(arguments.device)
    started = time.perf_counter()

    dataset = load_images()
    order = torch.randperm(len(dataset)).tolist()
    training = make_loader(Subset(dataset, order[TEST_IMAGES:]), device, arguments, shuffle=True)
    testing = make_loader(Subset(dataset, order[:TEST_IMAGES]), device, arguments, shuffle=False)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    losses: list[float] = []
    right = 0.0
    for epoch in range(arguments.epochs):
        epoch_losses = train_epoch(model, optimizer, training, device)
        losses += epoch_losses
        right = accuracy(model, testing, device)
        mean_loss = sum(epoch_losses) / len(epoch_losses)
        print(f"epoch {epoch + 1}  loss {mean_loss:.6f}  accuracy {right:.1%}", flush=True)

    if arguments.losses:
        arguments.losses.write_text(json.dumps([loss.hex() for loss in losses]))
    print(
        f"train_cnn: {len(dataset)} images on {device}, {arguments.epochs} epochs, "
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy {right:.1%}, "
        f"{time.perf_counter() - started:.1f} s"
    )


if __name__ == "__main__":
    main()
