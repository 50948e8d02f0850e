"""Checks uvmalloc on a machine with a real GPU: `scripts/gpu_check` runs it."""
