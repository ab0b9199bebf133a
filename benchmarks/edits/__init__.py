"""Measures starts after an edit (`make edits`): frames traced, and the first step's time relative to torch.compile's.
"""
