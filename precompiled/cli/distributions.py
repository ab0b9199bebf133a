"""Finds another installed distribution that has files in this package's folder.

This package is installed as ``torch-precompiled``. On PyPI, ``precompiled`` is an unrelated project. Both install the
folder ``precompiled/``, so the later installation overwrites files of the earlier one.
"""

from __future__ import annotations

import importlib.metadata
import sys

NAME = "torch-precompiled"
OTHER = "precompiled"
_FOLDER = "precompiled/"


def conflict() -> tuple[str, str] | None:
    """Describe the conflict with an installed ``precompiled``, and the remedy. None if there is no conflict."""
    for found in importlib.metadata.distributions(name=OTHER):
        if any(str(file).startswith(_FOLDER) for file in found.files or ()):
            what = f"the distribution `{OTHER}` {found.version}, an unrelated project, has files in the same folder"
            python = f"{sys.executable} -m pip"
            remedy = f"Run `{python} uninstall {OTHER}`, then install {NAME} again (with --force-reinstall)"
            return what, remedy
    return None
