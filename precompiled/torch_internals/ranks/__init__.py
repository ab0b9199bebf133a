"""Process groups, device meshes and DTensors: what they are called in a key, and stand-ins for them in a worker."""
