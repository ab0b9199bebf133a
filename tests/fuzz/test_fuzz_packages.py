"""Runs ``make fuzz-packages`` for a short time."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support_host import Host

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.package_grammar import Program, program
from tests.fuzz.packages import Verdict, check, status


def _wrong(verdicts: dict[int, Verdict]) -> list[str]:
    return [wrong for verdict in verdicts.values() for wrong in verdict.wrong]


@pytest.mark.fault("packages")
@pytest.mark.integration
def test_changed_input_gives_the_result_of_eager(shared_host: Host, tries: Callable[[int, int], int]) -> None:
    number = tries(8, 200)
    first = 0 if number == 8 else random.randrange(1 << 30)
    verdicts = check(shared_host, [program(seed) for seed in range(first, first + number)], "program")
    assert not _wrong(verdicts), f"seeds from {first}"
    rows = [row for verdict in verdicts.values() for row in verdict.rows]
    assert rows.count("used again") > number // 2
    assert "traced when changed" in rows
    assert "eager raises" not in rows


@pytest.mark.integration
def test_omitted_comparison_makes_a_program_wrong(shared_host: Host) -> None:
    verdicts = check(shared_host, [_shadowed_builtin()], "function", without="globals")
    assert len(_wrong(verdicts)) == 1
    assert (status(True, "globals"), status(False, "globals")) == (0, 1)
    assert (status(True, "nothing"), status(False, "nothing")) == (1, 0)


def _shadowed_builtin() -> Program:
    """Returns the first program whose traced function reads a builtin that a global may shadow."""
    wanted, computed_before = {"number", "shadowed builtin"}, "attribute"
    programs = map(program, itertools.count())
    return next(one for one in programs if wanted <= {*one.made_of} and computed_before not in one.made_of)


def test_every_program_is_python() -> None:
    for seed in range(500):
        compile(program(seed).text, f"program {seed}", "exec")
