"""Settings, errors, files: the lowest layer. It imports the standard library only, and no other package of the
project.
"""
