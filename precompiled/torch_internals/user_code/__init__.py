"""The user's own code that a compile depends on: operators, kernels, classes, modules, settings that are code.

Each file finds one kind of it, describes it for the key, and makes it again in a worker.
"""
