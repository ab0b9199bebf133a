"""Measures the table of model architectures (`make architectures`). Other benchmarks that list architectures import
``rows`` as well.
"""
