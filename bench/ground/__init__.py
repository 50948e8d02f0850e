"""Counts which calls of today's CUDA are known, served and right, and what hints cost."""
