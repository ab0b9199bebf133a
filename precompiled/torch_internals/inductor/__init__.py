"""Holds the parts of Inductor that client and worker use in the same way."""
