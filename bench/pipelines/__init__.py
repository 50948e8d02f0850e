"""Measures the promises of docs/reference/pipelines.md."""
