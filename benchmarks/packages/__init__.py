"""Packages beside tracing and beside plain torch.compile (`make bench-packages`, `make architectures-packages`)."""
