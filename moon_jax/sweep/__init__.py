"""Sweeps: sets of runs that train together. docs/sweeps.md describes them."""
