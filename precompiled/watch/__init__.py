"""The client's half of a watch: what runs inside of a capture process (docs/watch.md)."""

# The environment variable of a capture and its children: <token>:<steps, 0 for an entry point>:<the watcher's socket>
VARIABLE = "PRECOMPILED_CAPTURE"
