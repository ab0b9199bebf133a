"""A constant that a test edits, in a copy of this file."""

BACKWARD_FACTOR = 1.5
