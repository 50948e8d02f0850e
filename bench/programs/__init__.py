"""Measures moves, allocations and training steps of PyTorch programs, with uvmalloc and without."""
