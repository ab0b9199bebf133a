"""What all rooms stand on: settings, errors, files. The standard library only; it imports no other room."""
