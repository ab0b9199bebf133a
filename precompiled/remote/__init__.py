"""The remote behind the store (docs/decisions/0043): objects in a bucket, and the helper that fetches and puts them.

Doors: ``link`` (asking the helper, for workers and clients), ``transfer`` (what the helper and the command line do).
No torch, and fsspec only where a remote is set: in ``bucket``.
"""
