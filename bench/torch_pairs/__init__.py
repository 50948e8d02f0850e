"""Measures cache-hit pairs through PyTorch, with uvmalloc and with the native allocator."""
