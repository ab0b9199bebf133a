"""Starts after an edit (`make edits`): what is traced, and the first step beside plain torch.compile's warm start."""
