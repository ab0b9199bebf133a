"""Benchmarks against plain torch.compile (`make bench`). docs/reference/benchmarks.md describes each measure.

Each command is a folder with a ``__main__``. The folder's ``table`` defines the columns, the rows and a row's
measurement. ``measures`` has most of `make bench`. All commands share ``harness`` and ``models``.

A folder's ``__init__`` must not import anything, because some programs are timed from their first line.
"""
