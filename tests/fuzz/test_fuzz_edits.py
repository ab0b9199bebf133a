"""Runs ``python -m tests.fuzz.edits`` for a short time, or with 10,000 edits in `make test-faults`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support_host import Host
from support_packages import tells_what_ran

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.edit_grammar import program
from tests.fuzz.edits import EDITS_PER_PROGRAM, check
from tests.fuzz.source_edits import EDITS, edited


@pytest.mark.fault("packages")
@pytest.mark.timeout(7200)  # for the full form
@pytest.mark.integration
@tells_what_ran
def test_function_that_is_not_retraced_returns_the_result_of_the_edited_program(
    shared_host: Host, tries: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    number = tries(2 * EDITS_PER_PROGRAM, 10_000)
    first = 0 if number < 10_000 else random.randrange(1, 1 << 30)
    counts = check(shared_host, first, number)
    assert not counts.wrong, f"seeds from {first}\n{counts}"
    assert counts.unedited <= number // 1000, counts  # some programs retrace now and then, which is not wrong
    assert counts.all["used"] > number // 4, counts
    assert counts.all["changed"] > number // 30, counts
    record_property("measured", f"after {number:,} edits: {dict(counts.all)}")


@pytest.mark.slow
@tells_what_ran
def test_omitted_comparison_makes_an_edit_wrong(shared_host: Host) -> None:
    assert check(shared_host, 10_000, 6 * EDITS_PER_PROGRAM, without=True).wrong


def test_every_edit_is_python() -> None:
    drawn = set()
    for seed in range(20):
        texts, draw = program(seed), random.Random(seed)
        for _ in range(20):
            kind, file, text = edited(texts, draw)
            drawn.add(kind)
            assert text != texts[file]
            compile(text, file, "exec")
    assert drawn == {*EDITS}
