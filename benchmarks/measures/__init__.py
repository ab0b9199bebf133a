"""Measures the figures of `make bench`, one file per measure. ``benchmarks/starts`` has the measures of start times."""
