"""The environment of compared programs."""

from __future__ import annotations

import os

from uvmalloc._cli.environment import without_settings


def clean_environment() -> dict[str, str]:
    """Returns the environment without a developer's settings, which could favour a program."""
    return without_settings(os.environ, "CUDA_", "LD_")
