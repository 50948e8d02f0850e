"""Compares the allocator with others, below any framework: the same workloads for each."""
