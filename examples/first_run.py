"""Trains a network of wide layers: the program of docs/first-run.md.

uvmalloc sim --capacity 300MiB -- python examples/first_run.py
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description="Train a network of wide layers.")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--fused", action="store_true", help="use the fused optimizer")
arguments = parser.parse_args()

torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(12)]
model = nn.Sequential(*layers).to("cuda")  # 48 MiB of weights
optimizer = torch.optim.AdamW(model.parameters(), fused=arguments.fused)
inputs = torch.randn(64, 1024).to("cuda")

for step in range(1, arguments.steps + 1):
    loss = (model(inputs) - inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step:2d}  loss {loss.item():.6f}", flush=True)
