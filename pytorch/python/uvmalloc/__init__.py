"""The command line of uvmalloc. Importing it imports neither torch nor a native library."""

__version__ = "0.1.0"
