"""Runs random programs with swaps at random points (``python -m tests.fuzz``, see __main__.py), and other fuzz tests.
"""
