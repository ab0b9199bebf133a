"""Measures starts after an edit (`make edits`): traced frames, and the first step's time relative to
torch.compile's.
"""
