"""Packages of real models, by the code of `make architectures-packages`: the second process traces nothing."""

from __future__ import annotations

import pytest

from benchmarks.architectures.rows import Name
from benchmarks.packages.table import examine

# T5's forward is behind wrappers of transformers' and torch's own, which no name leads to: a mend that was right for
# every case of the soundness table refused all HuggingFace models once. The others: a graph break, a state space,
# convolutions with buffers.
EVERYDAY: Name = ("t5", "training")
OTHERS: list[Name] = [("gpt2", "training"), ("mamba", "inference"), ("resnet", "training"), ("whisper", "inference")]


@pytest.mark.parametrize(
    "name", [EVERYDAY, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)], ids="-".join
)
def test_the_second_process_of_a_real_model_traces_nothing(name: Name) -> None:
    (row,) = examine([name], print)
    assert row.right, row
    assert row.audited == row.frames, row
