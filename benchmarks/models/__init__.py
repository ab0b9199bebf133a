"""What is compiled, and the process that does it (``program``): ``suite`` is measured, ``zoo`` is seen to work."""
