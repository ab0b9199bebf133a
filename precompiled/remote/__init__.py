"""Moves objects between the store and a bucket, the *remote*, in a process called the helper.

Only the helper, a process of the user, connects to the remote: a program must not wait for a network, the daemon serves
all users, and workers have no credentials.

Entry points: ``helper_link`` (requests to the helper, for workers and clients) and ``transfer`` (for the helper and the
command line). No file of this folder imports torch. Only ``bucket`` imports fsspec, when it opens a remote.
"""
