"""The command line of uvmalloc. Importing it imports neither torch nor a native library."""

from uvmalloc.native import mark

__all__ = ["mark"]
__version__ = "0.1.0"
