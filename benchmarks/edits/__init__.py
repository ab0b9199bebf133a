"""Starts after an edit (`make edits`): frames traced, and the first step's time next to torch.compile's warm start."""
