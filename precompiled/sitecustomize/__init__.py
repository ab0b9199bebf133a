"""A folder for PYTHONPATH: `precompiled run` puts it first, so Python finds `sitecustomize.py` here at start-up.

It holds nothing else, so that nothing else becomes importable in the processes it reaches.
"""
