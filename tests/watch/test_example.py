"""Test of the README's claim about watch mode, with its example: an unmodified HuggingFace training script."""

from __future__ import annotations

import pytest

from benchmarks.watch import recorded_run


@pytest.mark.slow
def test_a_huggingface_script_is_served_after_every_edit() -> None:
    """recorded_run raises if the run after the save compiles or submits anything."""
    rate, batch = recorded_run(2, 64, print)
    assert (rate["edit"], rate["recompiled"], rate["reused"]) == ("lr = 0.002", 0, rate["captured"])
    assert (batch["edit"], batch["recompiled"], batch["reused"]) == ("batch = 4", batch["captured"], 0)
    assert rate["captured"] == batch["captured"] > 0
