"""Code that all benchmarks share: isolated hosts (``hosts``), resource use of process trees (``tree``), results
(``result``).

``table_command`` runs the command line of a table: options, output, its part of docs/, exit status.
"""
