"""Storage plans, credits and tensors on devices: measures the promises of docs/pipelines.md."""
