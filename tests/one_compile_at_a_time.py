"""For `pytest -n N --dist loadgroup -p tests.one_compile_at_a_time`: the tests that compile all go to one of the N.

A compile uses all cores, and so do the programs that wait for it: two such tests at once only take longer and run into
their limits. The others are small, and fill the second process beside them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

COMPILING = frozenset({"e2e", "chaos", "gpu"})
_TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_TESTS) and item.path.relative_to(_TESTS).parts[0] in COMPILING:
            item.add_marker(pytest.mark.xdist_group("compiling"))
