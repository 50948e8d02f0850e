"""The environment of compared programs."""

from __future__ import annotations

import os

from uvmalloc._cli.environment import without_settings


def clean_environment() -> dict[str, str]:
    """Returns this process's environment without the developer's settings, which may favour
    some.
    """
    return without_settings(os.environ, "CUDA_", "LD_")
