"""Packages next to tracing and to plain torch.compile (`make bench-packages`, `make architectures-packages`)."""
