"""The remote behind the store (docs/decisions/0043): objects in a bucket, and the helper that fetches and puts them.

Entry points: ``link`` (requests to the helper, for workers and clients) and ``transfer`` (for the helper and the
command line). No torch. ``bucket`` imports fsspec, and only if a remote is set.
"""
