"""vLLM as a client: the graphs that its piecewise backend compiles are served (docs/decisions/0037).

``plugin``: what vLLM calls at its start. ``adaptor``: the compiler interface that it gets. ``passes``: its own passes
over a graph, as a worker makes them again.
"""
