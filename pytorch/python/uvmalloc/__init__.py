"""uvmalloc from Python: its command line, and what a program may ask of it and tell it.

Importing it imports neither torch nor a native library.
"""

from uvmalloc.memory import enabled, prefetch, region, residency, stats
from uvmalloc.native import mark

__all__ = ["enabled", "mark", "prefetch", "region", "residency", "stats"]
__version__ = "0.1.0"
