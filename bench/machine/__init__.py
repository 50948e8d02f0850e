"""The simulated machine beside published measurements of real ones."""
