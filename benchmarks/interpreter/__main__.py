"""Runs `make interpreter` (table.py)."""

from benchmarks.interpreter.table import main

if __name__ == "__main__":
    raise SystemExit(main())
