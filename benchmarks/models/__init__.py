"""Holds the models and the process that runs them (``program``). ``suite`` is measured; ``zoo`` is only checked."""
