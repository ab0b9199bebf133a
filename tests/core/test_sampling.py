"""Tests that a random sample has the fraction that its setting names."""

from __future__ import annotations

from precompiled.core import sampling


def test_sample_has_the_configured_fraction() -> None:
    assert [sampling.is_drawn(fraction) for fraction in (0.0, 1.0)] == [False, True]
    drawn = sum(sampling.is_drawn(0.25) for _ in range(4000))
    assert 700 < drawn < 1300  # 1000 are expected; the limits are ten standard deviations away
