"""Runs `make architectures` (table.py)."""

from benchmarks.architectures.table import main

if __name__ == "__main__":
    raise SystemExit(main())
