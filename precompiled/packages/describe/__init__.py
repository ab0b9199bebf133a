"""Describes values of a user's program as plain data, which two processes can compare."""
