"""Measures the table of model architectures (`make architectures`). Other tables of architectures use ``rows`` too."""
