"""Measures packages relative to traces and to plain torch.compile (`make bench-packages`, `make
architectures-packages`).
"""
