"""A constant that the backward of a custom operator reads. A test edits a copy of this file."""

BACKWARD_FACTOR = 1.5
