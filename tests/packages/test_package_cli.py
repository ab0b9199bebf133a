"""Tests of what `precompiled` ls, show, explain and stats print about packages.

The commands and ``package_report()`` must name the failed guard and its line in the user's source.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import pytest
from support_host import Host
from support_packages import run, write

from precompiled.store.package_format import About
from precompiled.store.packages import PackageStore

NAME = "hyperparameter"
FUNCTION = f"{NAME}.Net.forward"


@pytest.fixture(scope="module")
def traced_twice(shared_host: Host) -> Any:
    """Returns a host with a package, and the report of a later process with a different value of a hyperparameter."""
    for after in (False, True):
        write(shared_host.root / str(after), after=after)
        found = run(shared_host, sys.executable, shared_host.root / str(after), [NAME])[NAME]
        assert (found["equal"], found["states"]) == (True, ["recorded"]), found
    return shared_host, found


@pytest.mark.integration
def test_package_report_names_the_failed_guard_and_its_line(traced_twice: Any) -> None:
    host, found = traced_twice
    (reasons,) = found["reasons"]
    path = host.root / "True" / f"{NAME}.py"  # the process's own file, not the traced one
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if "alpha=self.alpha)" in text)
    assert reasons[2:] == [f"L['self'].alpha: 3.0 here, 2.0 when it was traced ({path}:{line}, in forward)"]


def test_explain_names_the_difference_after_the_process_has_ended(traced_twice: Any) -> None:
    host, _found = traced_twice
    text = host.command("explain", FUNCTION)
    assert "  self.alpha: 3.0 here, 2.0 there" in text and f"{NAME}.py:" in text
    document = json.loads(host.command("explain", FUNCTION, "--json"))
    assert len(document["others"]) == 1 and len(document["others"][0]["changes"]) == 1


def test_show_lists_the_entries_and_their_guards(traced_twice: Any) -> None:
    host, _found = traced_twice
    document = json.loads(host.command("cache", "show", FUNCTION, "--json"))
    assert [entry["kind"] for entry in document["entries"]] == ["compiled"] * 2
    for entry in document["entries"]:
        assert {"L['self'].alpha", "L['x']"} <= {guard["source"] for guard in entry["guards"]}
        (key,) = entry["graphs"]
        assert json.loads(host.command("cache", "show", key, "--json"))["packages"] == [FUNCTION]
    assert "self.alpha" in host.command("cache", "show", FUNCTION)
    assert "L['self'].alpha: CONSTANT_MATCH" in host.command("cache", "show", FUNCTION, "--all")


def test_ls_lists_functions(traced_twice: Any) -> None:
    host, _found = traced_twice
    rows = json.loads(host.command("cache", "ls", "--json"))["packages"]
    packages = {row["function"]: row["entries"] for row in rows}
    assert packages[FUNCTION] == 2
    assert FUNCTION in host.command("cache", "ls")


@pytest.mark.reason("no-such-function")
def test_unknown_function_is_an_error_that_suggests_known_functions(traced_twice: Any) -> None:
    host, _found = traced_twice
    error = json.loads(host.command("explain", "Other.forward", "--json", status=1))["error"]
    assert error["code"] == "no-such-function"
    assert FUNCTION in error["action"]


def test_an_edit_that_moves_lines_leaves_one_entry(traced_twice: Any) -> None:
    """The new entry replaces the older entry with the same meaning, because the older one names lines that are gone."""
    host, _found = traced_twice
    store = PackageStore(host.store.root)
    (entry,) = [entry for entry in store.entries() if entry.header.module == NAME and b"3.0" in entry.about]
    moved = About.parse(entry.about)
    moved = dataclasses.replace(moved, guards=[dataclasses.replace(guard, place="x.py:1") for guard in moved.guards])
    assert store.publish(entry.header, moved.to_bytes(), entry.body) != entry.name
    assert len(store.names(entry.header.function)) == 2
    assert entry.name not in store.names(entry.header.function)


def test_stats_count_frames(traced_twice: Any) -> None:
    host, _found = traced_twice
    before = host.stats()
    assert (before.traced, before.untraced) == (2, 0)
    run(host, sys.executable, host.root / "True", [NAME])
    after = host.stats()
    assert (after.traced, after.untraced) == (2, 1)
