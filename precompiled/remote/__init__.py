"""Moves objects between the store and a bucket, the *remote* (docs/decisions/0043), in a process called the helper.

Entry points: ``link`` (requests to the helper, for workers and clients) and ``transfer`` (for the helper and the
line). This folder needs no torch. ``bucket`` imports fsspec, and only if a remote is set.
"""
