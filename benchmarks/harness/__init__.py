"""What every benchmark needs: hosts of its own (``hosts``), what all that ran there has used (``tree``), results.

``table_command``: the command line of a table, its output, its part of docs/, its exit status.
"""
