"""Measures CUDA programs without PyTorch, with libuvmalloc.so preloaded and without it."""
