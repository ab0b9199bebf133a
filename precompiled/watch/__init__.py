"""The client's half of a watch: what runs inside of a capture process (docs/watch.md)."""
