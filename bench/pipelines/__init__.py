"""Storage plans, credits and tensors on devices: what docs/pipelines.md promises, measured."""
