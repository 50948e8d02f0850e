"""Storage plans, credits and tensors on devices: what docs/storage.md promises, measured."""
