"""Support: checks whether a distribution is installed, for tests that are skipped without it."""

from __future__ import annotations

import importlib.metadata


def is_installed(module: str) -> bool:
    """Returns whether an installed distribution provides the top-level module.

    ``importlib.util.find_spec`` would also find a folder of that name on ``sys.path``: a checkout has the folder
    `build`, and tests have `tests/vllm`.
    """
    return module in importlib.metadata.packages_distributions()
