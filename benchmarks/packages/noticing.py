"""Measures the cost of noticing functions that Dynamo calls while it traces (packages/dynamo/native_calls.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness.effort import Say
from benchmarks.packages.first_call import measure_in_turns

LAYERS = {False: 6, True: 1}


def noticing(quick: bool, say: Say) -> list[float]:
    """Compare traces of a GPT-2 with and without FROM_THE_BEGINNING (native_calls.py). Returns ratios of CPU seconds.

    On CPython 3.12 and newer, native_calls.py watches every trace. On older versions, it watches a trace only after the
    trace has read, for example, an enum with methods. On these versions, the ratio is the cost of a watched trace.
    """
    import torch

    from precompiled.packages.dynamo import native_calls

    trace = _tracer(torch, LAYERS[quick])
    trace()  # this trace imports modules and fills Dynamo's caches

    def sample(side: str) -> float:
        native_calls.FROM_THE_BEGINNING = side == "noticed"
        with native_calls.watching():
            return trace()

    return measure_in_turns(sample, ("noticed", "without"), quick, say)


def _tracer(torch: Any, layers: int) -> Callable[[], float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=64, n_head=4, vocab_size=128))
    tokens = torch.zeros(2, 16, dtype=torch.long)

    def trace() -> float:
        torch._dynamo.reset()
        began = time.process_time()
        torch.compile(model, backend="eager")(input_ids=tokens, labels=tokens)
        return time.process_time() - began

    return trace
