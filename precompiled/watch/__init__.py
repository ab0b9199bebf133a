"""Code that a watch runs in a process of its own (docs/guides/watch.md), together with client/recorder.py."""
