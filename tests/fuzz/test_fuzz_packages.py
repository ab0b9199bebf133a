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

from tests.fuzz import changes
from tests.fuzz.package_grammar import Program, program
from tests.fuzz.packages import Verdict, check, status

CHANGES = 3_000  # as many as fit into six minutes of CPU


def _wrong(verdicts: dict[int, Verdict]) -> list[str]:
    return [wrong for verdict in verdicts.values() for wrong in verdict.wrong]


@pytest.mark.integration
def test_changed_input_gives_the_result_of_eager(shared_host: Host) -> None:
    verdicts = check(shared_host, [program(seed) for seed in range(8)], "program")
    assert not _wrong(verdicts)
    rows = [row for verdict in verdicts.values() for row in verdict.rows]
    assert rows.count("used again") > 4
    assert "traced when changed" in rows
    assert "eager raises" not in rows


@pytest.mark.fault("packages")
@pytest.mark.timeout(7200)  # for the full form
@pytest.mark.integration
def test_changed_inputs_environment_arguments_and_settings_give_the_result_of_eager(
    shared_host: Host, tries: Callable[..., int], record_property: Callable[[str, object], None]
) -> None:
    number = tries(changes.CHANGES_PER_PROGRAM, CHANGES, 10_000)
    first = 100 if number < CHANGES else random.randrange(1 << 30)
    counts = changes.check(shared_host, first, number)
    assert not counts.wrong, f"seeds from {first}\n{counts}"
    assert counts.rows["used"] > number // 4, counts
    assert counts.rows["result changed"] > number // 8, counts
    assert counts.rows["plain differs"] < number // 4, counts
    record_property("measured", f"after {number:,} changes: {dict(counts.rows)}")


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
