"""A pytest plugin for `pytest -n N -p tests.lanes`: each module runs in one of the N processes, longest modules first.

The plugin has its own scheduler, because ``--dist loadgroup`` of xdist 3.8 has no effect under pytest 9.2. xdist writes
the group into ``item._nodeid``, and pytest 9.2 no longer reads this attribute.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# The slowest modules, by the seconds that ``make test PYTEST_ARGS=--durations=0`` prints. If these modules start first,
# the parallel processes end at about the same time.
LONGEST_FIRST = (
    # Run by `make test-versions` and `make test-integration`
    "tests/versions/test_versions.py",
    "tests/packages/test_package_program.py",
    "tests/watch/test_runs.py",
    "tests/packages/test_package_soundness.py",
    "tests/chaos/test_losses.py",
    "tests/e2e/test_corpus.py",
    "tests/watch/test_storms.py",
    "tests/e2e/test_library_ops.py",
    "tests/chaos/test_interrupted_builds.py",
    "tests/watch/test_watch_packages.py",
    "tests/e2e/test_arbitrary_uid.py",
    "tests/e2e/test_freezing.py",
    "tests/e2e/test_seeds.py",
    "tests/e2e/test_models.py",
    # Run by `make test`
    "tests/e2e/test_modes.py",
    "tests/chaos/test_bad_artifacts.py",
    "tests/graph/test_key_properties.py",
    "tests/client/test_fallbacks.py",
    "tests/client/test_connection.py",
    "tests/packages/test_package_reasons.py",
    "tests/watch/test_watching.py",
    "tests/e2e/test_in_process.py",
    "tests/remote/test_helper.py",
    "tests/torch_internals/test_stand_in_operators.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::", 1)[0], len(place)))


class Modules(LoadScopeScheduling):
    """An xdist scheduler that assigns whole modules to processes, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Modules:
    config.option.loadscopereorder = False  # otherwise xdist would reorder the modules by their number of tests
    return Modules(config, log)
