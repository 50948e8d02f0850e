"""torchvision's ResNet-18 on random pictures, through a DataLoader with forked workers and pinning.

Prints the losses and a checksum of the weights, as one line of JSON."""

from __future__ import annotations

import json

import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(5)
    pictures = TensorDataset(torch.randn(48, 3, 64, 64), torch.randint(0, 10, (48,)))
    model = torchvision.models.resnet18(num_classes=10)
    model.to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(2):  # workers are forked again
        for batch, labels in DataLoader(pictures, batch_size=16, num_workers=2, pin_memory=True):
            batch = batch.to("cuda", non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to("cuda", non_blocking=True)
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    weights = sum(parameter.double().sum().item() for parameter in model.cpu().parameters())
    print(json.dumps({"losses": losses, "weights": weights}))


if __name__ == "__main__":
    main()
