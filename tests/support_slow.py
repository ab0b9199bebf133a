"""Support: test parameters, some for the everyday run and all others for `make test-slow`."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def everyday_or_slow(cases: Iterable[Any], everyday: Container[Any]) -> list[Any]:
    """Returns the values as parameters of a test. Values that are not in ``everyday`` are marked slow.

    A value that is a tuple has one element for each argument of the test.
    """
    rows = []
    for case in cases:
        marks = [] if case in everyday else [pytest.mark.slow]
        rows.append(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks))
    return rows
