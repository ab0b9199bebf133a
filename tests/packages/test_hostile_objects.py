"""No object of the program, and no failure of packages, ends or changes a call that torch.compile serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host
from support_packages import run_program
from support_slow import everyday_or_slow

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
PARTS = 24


def test_a_look_at_a_global_runs_none_of_the_programs_code(shared_host: Host) -> None:
    """Proxies that are not bound, mocks, lazy settings: the program has the results and the calls of plain torch."""
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
def test_a_failure_at_any_step_is_counted_and_reaches_no_program(shared_host: Host, part: int) -> None:
    found: Any = run_program(shared_host, PROGRAMS, "failing_steps_program.py", str(part), str(PARTS))
    assert found["made to raise"] > 5 and found["called"] > 0
    assert found["reached the program"] == []
    assert found["counted"]["package-internal-error"] > 0
