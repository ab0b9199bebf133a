"""Runs `make torch-tests` (table.py)."""

from benchmarks.torch_tests.table import main

if __name__ == "__main__":
    raise SystemExit(main())
