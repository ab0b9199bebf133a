"""For `pytest -n N -p tests.one_compile_at_a_time`: the tests that compile all go to one of the N processes.

A compile uses all cores, and so do the programs that wait for it: two such tests at once only take longer and run into
their limits. The others are small, and fill the other processes meanwhile.

A scheduler of its own, since xdist 3.8's ``--dist loadgroup`` groups nothing under pytest 9.2 (it renames items by an
attribute that is no longer read).
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

COMPILING = ("tests/e2e/", "tests/chaos/", "tests/gpu/", "tests/watch/")


class OneCompileAtATime(LoadScopeScheduling):
    """Whole modules, and all that compile as if they were one; in the order of collection, where these come first."""

    def _split_scope(self, nodeid: str) -> str:
        return "compiling" if nodeid.startswith(COMPILING) else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneCompileAtATime:
    config.option.loadscopereorder = False  # the long group first, not the one with the most tests
    return OneCompileAtATime(config, log)
