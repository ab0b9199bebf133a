"""Turns graphs into a canonical form, bytes and a key. A worker decodes exactly the bytes that the key hashes."""
