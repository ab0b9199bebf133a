"""Runs a graph eagerly until its artifact is ready (docs/explanation/stand-in.md)."""
