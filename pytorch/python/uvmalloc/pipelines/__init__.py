"""Pipelines, storage plans and streamed checkpoints, over libuvmalloc_pipelines.so.

Importing it imports neither torch nor a native library.
"""
