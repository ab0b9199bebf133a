"""More than one host: 1,000 simulated hosts start cold (``python -m benchmarks.fleet``, docs/guides/fleet.md)."""
