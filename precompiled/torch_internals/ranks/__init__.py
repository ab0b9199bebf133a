"""Handles process groups, device meshes and DTensors: their names in a key, and their stand-ins in a worker."""
