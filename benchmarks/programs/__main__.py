"""Runs `make programs` (table.py)."""

from benchmarks.programs.table import main

if __name__ == "__main__":
    raise SystemExit(main())
