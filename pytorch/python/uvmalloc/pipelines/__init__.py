"""Pipelines, plans of storage and streams of checkpoints: guests of the allocator.

Importing it imports neither torch nor a native library.
"""
