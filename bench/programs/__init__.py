"""What PyTorch programs feel of uvmalloc: moves, allocations and training steps, beside stock."""
