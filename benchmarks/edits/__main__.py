"""Runs `make edits` (table.py)."""

from benchmarks.edits.table import main

if __name__ == "__main__":
    raise SystemExit(main())
