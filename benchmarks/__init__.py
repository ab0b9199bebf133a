"""Benchmarks against plain torch.compile (`make bench`). docs/reference/benchmarks.md describes each measure.

Each command is a folder with a ``__main__``; its ``table`` defines the columns, the rows and the measurement of a row.
``measures`` holds most of `make bench`; ``harness`` and ``models`` are shared by all commands.

A folder's ``__init__`` must import nothing, because some programs are timed from their first line.
"""
