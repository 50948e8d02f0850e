"""Pipelines, storage plans and streamed checkpoints, over libuvmalloc_pipelines.so.

Importing this package imports neither torch nor a native library.
"""
