"""The command `watch`, and the code that runs in the processes of a watch (docs/guides/watch.md).

The watcher itself is ``precompiled.service.watch``.
"""
