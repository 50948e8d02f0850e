"""GPU wheels that run unmodified on the simulated device, with uvmalloc and without it."""
