"""What a watch starts as a process of its own (docs/guides/watch.md); client/recorder.py is inside of it."""
