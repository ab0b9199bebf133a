"""Tests that a program gets the exceptions of its own signal handlers, at any moment of a first call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support_host import Host

PROGRAM = Path(__file__).parent.parent / "programs" / "interrupted_program.py"


@pytest.mark.fault("program")
@pytest.mark.integration
@pytest.mark.parametrize("how", ["hit", "miss"])
@pytest.mark.parametrize("packages", ["off", "program"])
def test_exception_of_a_signal_handler_reaches_the_program(
    served: Host, tries: Callable[[int, int], int], how: str, packages: str
) -> None:
    number = tries(8, 60) if how == "hit" else tries(4, 12)
    found = served.program(str(PROGRAM), how, str(number), "1", env={"PRECOMPILED_PACKAGES": packages}).result()
    assert found["swallowed"] == []
    assert how == "miss" or found["last"] == ["compiled", "hit" if packages == "off" else "package"]
