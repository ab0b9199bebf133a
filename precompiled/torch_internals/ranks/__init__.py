"""Handles process groups, device meshes and DTensors: their names in a key, and a worker's substitutes for them."""
