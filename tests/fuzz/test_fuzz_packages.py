"""The short form of ``make fuzz-packages``."""

from __future__ import annotations

import sys
from pathlib import Path

from support_host import Host

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.package_grammar import program
from tests.fuzz.packages import check

SEEDS = range(12)


def test_a_changed_input_gives_what_eager_gives(shared_host: Host) -> None:
    programs = [program(seed) for seed in SEEDS]
    verdicts = check(shared_host, programs, "program")
    assert not [verdict for verdict in verdicts.values() if verdict.startswith("wrong")], verdicts
    assert "used" in verdicts.values()
