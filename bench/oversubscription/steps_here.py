"""Runs STEPS steps of a program on the device, each with a mark.

`python -m bench.oversubscription.steps_here PROGRAM STEPS`
"""

from __future__ import annotations

import sys

import torch
import uvmalloc

from bench.oversubscription.programs import make


def main() -> None:
    torch.manual_seed(0)
    step = make(sys.argv[1])
    for number in range(int(sys.argv[2])):
        uvmalloc.mark(f"step {number}")
        step()
    uvmalloc.mark("end")


if __name__ == "__main__":
    main()
