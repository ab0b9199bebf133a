"""Describes values of a program as plain data that two processes can compare."""
