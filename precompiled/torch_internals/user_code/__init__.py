"""Finds the user's code that a compile depends on: operators, kernels, classes, modules, and settings that are code.

Each file finds one kind of user code, describes the code for the key, and rebuilds it in a worker.
"""
