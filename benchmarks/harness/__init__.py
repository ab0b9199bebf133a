"""Shared by all benchmarks: isolated hosts (``hosts``), resource use of process trees (``tree``), results (``result``).

``table_command`` is the command line of a table: options, output, its part of docs/, exit status.
"""
