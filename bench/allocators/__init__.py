"""The allocator beside others, below any framework: the same workloads for each."""
