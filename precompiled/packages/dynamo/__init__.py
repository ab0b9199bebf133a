"""The private torch of packages: Dynamo's frames, guards and traces.

Each file names what it uses, and the versions on which that was checked.
"""
