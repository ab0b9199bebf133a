"""Packages: Dynamo's own output (guards, bytecode, the keys of its graphs), kept so that a later process skips tracing.

``identity``: what a thing is, in words that hold in another process; ``program`` and ``requirements``: what must be the
same around it; ``format`` and ``store``: the files; ``automatic``: what happens at each frame that Dynamo would trace.
What is torch's own about it is in torch_internals/package_*.py (docs/packages.md, docs/decisions/0012-packages.md).
"""
