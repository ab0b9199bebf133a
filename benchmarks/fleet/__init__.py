"""Simulates 1,000 hosts that start cold (``python -m benchmarks.fleet``, docs/guides/fleet.md)."""
