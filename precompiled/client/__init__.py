"""Serves a user's process: looks up its graphs, submits misses, awaits the artifacts, and swaps compiled code in."""
