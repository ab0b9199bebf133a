"""Runs `make ranks` (table.py)."""

from benchmarks.ranks.table import main

if __name__ == "__main__":
    raise SystemExit(main())
