"""Random programs, swapped at random points: ``python -m tests.fuzz`` (see __main__.py)."""
