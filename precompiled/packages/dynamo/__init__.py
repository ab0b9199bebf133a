"""The part of packages that uses private names of torch: Dynamo's frames, guards and traces.

Each file lists the private names that it uses, and the versions on which they were checked.
"""
