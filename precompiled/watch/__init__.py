"""The command `watch`, and the code that a watch runs in a process of its own (docs/guides/watch.md).

The watcher itself is ``precompiled.service.watch``.
"""
