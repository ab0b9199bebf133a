"""Tests that packages never break a call that torch.compile serves.

Neither unusual objects of the program nor failures inside packages may raise an error or change a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host
from support_packages import run_program
from support_slow import everyday_or_slow

pytestmark = pytest.mark.integration

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
PARTS = 24


def test_reading_a_global_runs_no_code_of_the_program(shared_host: Host) -> None:
    """The globals are unbound proxies, mocks and lazy settings, which run code if anything reads their attributes.

    The results must equal plain torch's. Packages may run code of these objects only where plain torch runs it, too.
    """
    plain = run_program(shared_host, PROGRAMS, "hostile_program.py", PRECOMPILED="0")
    recorded = run_program(shared_host, PROGRAMS, "hostile_program.py")
    used = run_program(shared_host, PROGRAMS, "hostile_program.py")
    for found in (recorded, used):
        assert found["none"] == plain["none"] and found["some"] == plain["some"]
        assert found["ran for none"] == plain["ran for none"] == []
        assert set(found["ran for some"]) <= set(plain["ran for some"])
    assert "used" in used["states"], used


@pytest.mark.parametrize("part", everyday_or_slow(range(PARTS), (0,)))
@pytest.mark.reason("package-internal-error")
def test_failure_at_any_step_is_counted_and_never_reaches_the_program(shared_host: Host, part: int) -> None:
    found: Any = run_program(shared_host, PROGRAMS, "failing_steps_program.py", str(part), str(PARTS))
    assert found["made to raise"] > 5 and found["called"] > 0
    assert found["reached the program"] == []
    assert found["counted"]["package-internal-error"] > 0
