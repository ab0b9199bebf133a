"""Tests that the second process of a real model traces nothing, with the code of `make architectures-packages`."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow  # The everyday run has GPT-2 and BERT in tests/e2e/test_models.py.

# T5 is here because wrappers of transformers and torch surround its forward, and no global name leads to them. If
# packages rejected such wrappers, all soundness cases would pass, but no HuggingFace model would have a package. The
# other models have a graph break, a state space, and convolutions with buffers.
MODELS = [
    ("t5", "training"),
    ("gpt2", "training"),
    ("mamba", "inference"),
    ("resnet", "training"),
    ("whisper", "inference"),
]


@pytest.mark.parametrize("name", MODELS, ids="-".join)
def test_second_process_of_a_real_model_traces_nothing(name: tuple[str, str]) -> None:
    from benchmarks.packages.table import examine  # imports transformers, which takes seconds at collection

    (row,) = examine([name], print)
    assert row.right, row
    assert row.audited == row.frames, row
