"""Values of a user's program as data: what two processes compare."""
