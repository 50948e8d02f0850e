"""What programs that are compared find in their environment."""

from __future__ import annotations

import os

_STRAY_PREFIXES = ("UVMALLOC_", "UVMSIM_", "PYTORCH_", "CUDA_", "LD_")


def clean_environment() -> dict[str, str]:
    """Ours, less what a developer has set: it must not reach one of those compared alone."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(_STRAY_PREFIXES)
    }
