"""More than one host: 1,000 simulated ones start cold at once (``python -m benchmarks.fleet``, docs/fleet.md)."""
