"""Programs that train on images or make some."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.oversubscription.programs import Step
from bench.oversubscription.programs.stacks import dense_layers


def in_turns() -> Step:
    """Trains a generator and its critic, two steps each in turn."""
    noise, pixels = 128, 3072
    activation = functools.partial(nn.LeakyReLU, 0.2)
    generator = dense_layers(activation, noise, 1536, 2048, 2048, pixels).to("cuda")
    critic = dense_layers(activation, pixels, 2048, 2048, 1536, 1).to("cuda")
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
    done = 0

    def train_critic(fake: Tensor) -> Tensor:
        real = torch.randn(32, pixels).to("cuda")
        loss = F.softplus(critic(fake)).mean() + F.softplus(-critic(real)).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        return loss

    def train_generator(fake: Tensor) -> Tensor:
        loss = F.softplus(-critic(fake)).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
        return loss

    def step() -> str:
        nonlocal done
        fake = generator(torch.randn(32, noise).to("cuda"))
        loss = train_critic(fake.detach()) if done % 4 < 2 else train_generator(fake)
        done += 1
        return loss.item().hex()

    return step


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.second(self.first(x))


class UNet(nn.Module):
    """Halves the image at each level, and joins each level again on the way back."""

    def __init__(self, inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.enter = nn.Conv2d(inputs, widths[0], 3, padding=1)
        self.down = nn.ModuleList(_Residual(above, below) for above, below in pairs)
        self.middle = _Residual(widths[-1], widths[-1])
        self.up = nn.ModuleList(_Residual(2 * below, above) for above, below in reversed(pairs))
        self.leave = nn.Conv2d(widths[0], inputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for up, skip in zip(self.up, reversed(skips), strict=True):
            x = up(torch.cat([F.interpolate(x, scale_factor=2), skip], dim=1))
        return self.leave(x)


def unet() -> Step:
    """Trains a U-Net to remove noise. Its activations take most of the memory."""
    model = UNet(3, (16, 32, 64, 128)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> str:
        clean = torch.randn(14, 3, 64, 64).to("cuda")
        noise = torch.randn(14, 3, 64, 64).to("cuda")
        loss = F.mse_loss(model(clean + noise), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item().hex()

    return step


def diffusion() -> Step:
    """Makes an image of noise in five passes of a frozen U-Net. Its weights take the memory."""
    model = UNet(4, (128, 256, 512, 896)).to("cuda").requires_grad_(False)
    shares = torch.linspace(0.1, 0.9, 5).tolist()

    def step() -> str:
        x = torch.randn(1, 4, 16, 16).to("cuda")
        for share in shares:
            x = x - share * model(x)
        return x.sum().item().hex()

    return step
