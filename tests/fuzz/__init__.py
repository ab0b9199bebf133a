"""Runs random programs with swaps at random points (``python -m tests.fuzz``), and other fuzz tests."""
