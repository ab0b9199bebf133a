"""Support: checks whether a distribution is installed, for tests that are skipped without it."""

from __future__ import annotations

import importlib.metadata


def is_installed(distribution: str) -> bool:
    """Returns whether a distribution is installed.

    ``importlib.util.find_spec`` would also find a folder of that name on ``sys.path``: a checkout has the folder
    `build`, and tests have `tests/vllm`.
    """
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
