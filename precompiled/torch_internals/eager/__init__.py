"""The eager run of a graph until its artifact exists (docs/explanation/stand-in.md)."""
