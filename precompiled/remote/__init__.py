"""Moves objects between the store and a bucket, the *remote* (docs/decisions/0043), in a process called the helper.

Entry points: ``helper_link`` (requests to the helper, for workers and clients) and ``transfer`` (for the helper and the
command line). No file of this folder imports torch. Only ``bucket`` imports fsspec, when it opens a remote.
"""
