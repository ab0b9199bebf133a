"""One graph's way in a user's process: looked up, submitted, awaited, swapped."""
