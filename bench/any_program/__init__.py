"""Measures CUDA programs without PyTorch, with libuvmalloc_preload.so preloaded and without it."""
