"""Side by side with torch.compile: `make bench`. What is measured and how: docs/benchmarks.md."""
