"""Edited by a test, in a copy."""

BACKWARD_FACTOR = 1.5
