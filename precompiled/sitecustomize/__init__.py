"""A folder for PYTHONPATH: `precompiled run` puts it first, so that Python runs its `sitecustomize.py` at start-up.

The folder holds nothing else, so that no other module becomes importable in the processes that `precompiled run`
starts.
"""
