"""Tests that each marker ``fault(kind)`` names a kind of tests/faults/plugin.py, which `make test` does not load."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.plugin import KINDS

TESTS = Path(__file__).resolve().parents[1]


def test_each_marker_names_a_kind_of_faults() -> None:
    texts = [path.read_text() for path in TESTS.rglob("test_*.py")]
    named = {kind for text in texts for kind in re.findall(r'mark\.fault\("([^"]*)"\)', text)}
    assert named == set(KINDS)
