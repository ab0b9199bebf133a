"""Runs `make operators` (table.py)."""

from benchmarks.operators.table import main

if __name__ == "__main__":
    raise SystemExit(main())
