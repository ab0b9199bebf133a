"""Measures how costs grow with artifacts, clients and jobs (`make bench-scale`)."""
