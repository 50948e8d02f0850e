"""uvmalloc from Python: its command line, and what a program may ask of it and tell it.

Importing it imports neither torch nor a native library. Torch, imported before or after, then has
RFC-0023's names (uvmalloc.torch_names).
"""

import uvmalloc.torch_names  # noqa: F401
from uvmalloc.loading import load_safetensors
from uvmalloc.memory import advise, enabled, prefetch, region, residency, stats
from uvmalloc.native import mark

__all__ = [
    "advise",
    "enabled",
    "load_safetensors",
    "mark",
    "prefetch",
    "region",
    "residency",
    "stats",
]
__version__ = "0.1.0"
