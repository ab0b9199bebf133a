"""Handles Dynamo's frames, guards and traces for packages, by private names of torch.

Each file lists its private names, and the versions of torch on which they were checked.
"""
