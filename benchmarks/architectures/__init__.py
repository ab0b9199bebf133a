"""The table of model architectures (`make architectures`). ``rows`` is shared with other tables of architectures."""
