"""Artifacts: their format, the store that keeps them, the checks before anything of them is loaded."""
