"""Tests that a program behaves as under plain torch.compile if its eager run raises and its compiled code does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host

pytestmark = [pytest.mark.fault("program"), pytest.mark.integration]

PROGRAM = Path(__file__).parent.parent / "programs" / "raising_program.py"
FAST = [
    "an_input_is_changed_before",
    "a_checkpoint_computes_it_again",
    "data_that_eager_refuses_come_late",
    "nan_is_looked_for",
]


def compare_with_plain(host: Host, *arguments: str) -> list[str]:
    """Run the program with plain torch.compile and with precompiled. Check that the results are equal.

    Returns the reasons of the graphs in the run with precompiled.
    """
    wanted = host.program(str(PROGRAM), *arguments, env={"PRECOMPILED": "0"}).result()
    found = host.program(str(PROGRAM), *arguments).result()
    assert set(found["results"]) == set(wanted["results"])
    for name, value in wanted["results"].items():
        assert same(found["results"][name], value), (name, found["results"][name], value)
    reasons: list[str] = found["reasons"]
    return reasons


def same(found: Any, wanted: Any) -> bool:
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(found, float) and isinstance(wanted, float):
        return found == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    return bool(found == wanted)


@pytest.mark.reason("stand-in-raised")
def test_fast_cases_run_as_plain_where_eager_raises(served: Host) -> None:
    assert "stand-in-raised" in compare_with_plain(served, "go", *FAST)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["go", "wait"])
def test_all_cases_run_as_plain_where_eager_raises(served: Host, when: str) -> None:
    assert "stand-in-raised" in compare_with_plain(served, when)
