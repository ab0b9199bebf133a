"""A package is used where a trace would give the same, and nowhere else; results equal eager's everywhere.

All cases are recorded by one process and offered to one other (tests/support_packages.py).
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from support_host import Host
from support_packages import CASES, NEVER, USED, run, write


@pytest.fixture(scope="module")
def recorded(shared_host: Host) -> tuple[Host, dict[str, Any]]:
    write(shared_host.root / "before", after=False)
    return shared_host, run(shared_host, sys.executable, shared_host.root / "before", list(CASES))


@pytest.fixture(scope="module")
def later(recorded: tuple[Host, dict[str, Any]]) -> dict[str, Any]:
    host, _first = recorded
    write(host.root / "after", after=True)
    return run(host, sys.executable, host.root / "after", list(CASES))


@pytest.mark.parametrize("name", CASES)
def test_it_is_recorded(recorded: tuple[Host, dict[str, Any]], name: str) -> None:
    found = recorded[1][name]
    assert "error" not in found, found["error"]
    assert found["equal"]
    kept = {"traced"} if name in NEVER else {"recorded"}
    assert set(found["states"]) <= kept and found["states"], found


@pytest.mark.parametrize("name", CASES)
def test_it_is_used_where_it_holds_and_nowhere_else(later: dict[str, Any], name: str) -> None:
    found = later[name]
    assert "error" not in found, found["error"]
    assert found["equal"], found
    if CASES[name].expected == USED:
        assert set(found["states"]) <= {"used", "skipped"} and found["states"], found
        assert (found["frames"], found["graphs"]) == ({}, 0)
    else:
        assert "used" not in found["states"], found
