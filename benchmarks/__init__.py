"""Side by side with torch.compile: `make bench`. What is measured and how: docs/reference/benchmarks.md.

A room for each command (its ``__main__``), ``measures`` for most of `make bench`; below: ``harness``, ``models``.
A room's ``table`` has the columns, the rows, and how one row is measured. ``harness.table_command`` does the rest.
The rooms' own ``__init__`` import nothing: some of the programs that are run are measured from their first line.
"""
