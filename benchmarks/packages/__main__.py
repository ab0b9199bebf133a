"""Runs `make architectures-packages` (table.py)."""

from benchmarks.packages.table import main

if __name__ == "__main__":
    raise SystemExit(main())
