"""Supports vLLM as a client: serves the graphs that its piecewise backend compiles (docs/decisions/0037).

- ``plugin``: the entry point that vLLM calls at its start.
- ``adaptor``: the compiler interface that vLLM gets.
- ``passes``: vLLM's own passes over a graph, in a form that a worker can rebuild.
"""
