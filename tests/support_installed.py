"""Whether a distribution is installed, for tests that are skipped without it."""

from __future__ import annotations

import importlib.metadata


def is_installed(module: str) -> bool:
    """Whether some distribution has a top-level module. A search for the module would also find a folder of that name
    in the path: a checkout has `build`, and a test run `tests/vllm`.
    """
    return module in importlib.metadata.packages_distributions()
