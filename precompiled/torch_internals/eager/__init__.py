"""The eager run of a graph until its artifact is ready (docs/explanation/stand-in.md)."""
