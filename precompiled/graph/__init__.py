"""Graphs: canonical form, bytes, key. What the worker decodes is exactly what the key hashes."""
