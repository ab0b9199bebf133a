"""Support: whether a distribution is installed, for tests that are skipped without it."""

from __future__ import annotations

import importlib.metadata


def is_installed(module: str) -> bool:
    """Returns whether a distribution provides the top-level module.

    A search for the module itself would also find folders on the path with that name: a checkout has `build`, and a
    test run `tests/vllm`.
    """
    return module in importlib.metadata.packages_distributions()
