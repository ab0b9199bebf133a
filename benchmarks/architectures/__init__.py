"""A table of architectures (`make architectures`); ``rows`` is for each such table."""
