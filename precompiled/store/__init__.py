"""Manages the files on disk (artifacts, packages, failure records), and checks who owns them.

No file of this folder imports torch.

``artifacts.Store`` and ``packages.PackageStore`` are the entry points. Only ``writing`` gives an artifact its final
name. The ``*_format`` modules define the files.
"""
