"""`precompiled`, what a client process imports."""

from precompiled.version import VERSION as __version__

__all__ = ["__version__"]
