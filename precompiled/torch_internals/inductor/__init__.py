"""Parts of Inductor that client and worker use in the same way."""
