"""Fuzz tests. ``python -m tests.fuzz`` runs random programs with swaps at random points."""
