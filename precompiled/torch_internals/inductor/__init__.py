"""Parts of Inductor that client and worker both use, in the same way."""
