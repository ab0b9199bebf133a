"""The compiled models and the process that runs them (``program``). ``suite`` is measured; ``zoo`` only has to work."""
