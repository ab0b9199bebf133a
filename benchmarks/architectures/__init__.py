"""Measures the table of model architectures (`make architectures`). Other tables of architectures share ``rows``."""
