"""The programs that run with less device memory than they need.

A factory makes a program's model and returns its step, which runs once and returns its exact result
as text. The programs are ordinary code of users: no step is marked. This module does not import
torch, so that the process that starts the programs needs no device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

Step = Callable[[], str]


@dataclass(frozen=True)
class Program:
    """Where the factory is, and what the steps have in common.

    `needs_mib`: the pages at the end of a run with enough memory.
    `learnable`: the memory that a step uses, and the order, do not depend on the batch.
    `steady_steps`: figures are the mean of the last ones, a whole period of the program.
    """

    module: str
    needs_mib: int
    learnable: bool = True
    steady_steps: int = 2


PROGRAMS = {
    "gpt": Program("full_size", 1852),
    "cnn": Program("full_size", 454),
    "recommender": Program("full_size", 860),
    "generation": Program("full_size", 310),
    "lengths": Program("sequences", 402, learnable=False, steady_steps=4),
    "micro_batches": Program("sequences", 398),
    "lstm": Program("sequences", 400),
    "distillation": Program("sequences", 504),
    "in_turns": Program("images", 516, steady_steps=4),
    "unet": Program("images", 210),
    "diffusion": Program("images", 200),
    "evaluation": Program("tables", 484, steady_steps=4),
    "zipf_rows": Program("tables", 392, learnable=False, steady_steps=4),
    "experts": Program("experts", 514, learnable=False, steady_steps=4),
    "streaming": Program("stacks", 322),
    "decayed": Program("stacks", 2006),
    "dense": Program("stacks", 560),
}
# The programs whose steps are recorded and replayed too.
FULL_SIZE = tuple(name for name, program in PROGRAMS.items() if program.module == "full_size")


def make(name: str) -> Step:
    """Makes the program on the device, and returns its step."""
    module = importlib.import_module(f"{__name__}.{PROGRAMS[name].module}")
    step: Step = getattr(module, name)()
    return step
