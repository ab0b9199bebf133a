"""Serves a process's graphs: looks up, submits and awaits artifacts, and swaps compiled code in."""
