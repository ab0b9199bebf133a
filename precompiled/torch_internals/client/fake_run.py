"""Runs a user's factory without allocating the memory of its tensors.

Dynamo treats fake tensors like the real tensors that they represent, if their fake mode is not Dynamo's own. So the
graphs and their keys are those of real tensors (tests/watch/test_entry.py). Code that reads the value of a tensor
raises an exception.

Private names: torch._subclasses.fake_tensor.FakeTensorMode. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._subclasses.fake_tensor import FakeTensorMode


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors created in this context have no storage. Code in the context may also use real tensors, which earlier
    imports created.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield
