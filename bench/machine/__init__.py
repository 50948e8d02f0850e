"""Compares the simulated machine with published measurements of real ones."""
