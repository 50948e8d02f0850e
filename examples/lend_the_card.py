"""Trains a model, lends the card to another program in the middle, and goes on, bit for bit.

    uvmalloc run -- python lend_the_card.py --after 3 -- python other_program.py
    python lend_the_card.py --losses losses.json       # the other program is this one, as a job

Before the other program starts, the group of the training sleeps: the model, its gradients and the
optimizer's state leave the device and keep their addresses. After it, the group wakes. Without
uvmalloc the group does nothing, and both programs share the device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
import uvmalloc
from torch import nn

WIDTH, BATCH = 1024, 32


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1)).cuda()


def job() -> None:
    """Stands for another program that needs the card."""
    square = torch.ones(2048, 2048, device="cuda")
    print("the other program computed", float((square @ square).sum()))


def lend(group: uvmalloc.groups.Group, command: list[str]) -> None:
    """Runs the command while the group sleeps."""
    group.sleep()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # the other program gets cached memory too
    figures = group.figures()
    print(f"{figures.page_bytes >> 20} MiB sleep, {figures.device_bytes >> 20} MiB on the device")
    subprocess.run(command, check=True)
    group.wake()


def train(steps: int, after: int, command: list[str]) -> list[float]:
    torch.manual_seed(0)
    group = uvmalloc.group("training")
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.Generator().manual_seed(1)
    losses = []
    for step in range(1, steps + 1):
        x = torch.randn(BATCH, WIDTH, generator=inputs).cuda()
        loss = (model(x) - x.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.6f}")
        if step == after:
            gradients = [each.grad for each in model.parameters()]
            lend(group.add(model, gradients, optimizer.state), command)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--after", type=int, default=3, help="lend the card after so many steps")
    parser.add_argument("--losses", type=Path, help="write the losses there, as JSON")
    parser.add_argument("--job", action="store_true", help="be the other program")
    parser.add_argument("command", nargs="*", help="the other program; default: this one, --job")
    arguments = parser.parse_args()
    if arguments.job:
        job()
        return
    command = arguments.command or [sys.executable, __file__, "--job"]
    losses = train(arguments.steps, arguments.after, command)
    if arguments.losses:
        arguments.losses.write_text(json.dumps([loss.hex() for loss in losses]))


if __name__ == "__main__":
    main()
