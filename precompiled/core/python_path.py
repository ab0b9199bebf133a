"""Puts precompiled's sitecustomize.py first on PYTHONPATH.

So every Python process below `precompiled run` loads the hook.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def hook_folder() -> Path:
    """The folder of precompiled's sitecustomize.py."""
    return Path(__file__).resolve().parent.parent / "sitecustomize"


def with_hook(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with ``hook_folder()`` as the first entry of PYTHONPATH, and nowhere else in PYTHONPATH."""
    return {**variables, "PYTHONPATH": os.pathsep.join([str(hook_folder()), *_others(variables)])}


def _others(variables: Mapping[str, str]) -> list[str]:
    ours = str(hook_folder())
    value = variables.get("PYTHONPATH", "")
    return [entry for entry in value.split(os.pathsep) if entry != ours] if value else []
