"""Graphs: canonical form, bytes and key. A worker decodes exactly the bytes that the key hashes."""
