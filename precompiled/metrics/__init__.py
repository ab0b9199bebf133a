"""Exports metrics of this host for Prometheus (docs/guides/seeing.md)."""
