"""Running a user's factory without the memory of its tensors.

Dynamo takes the fake tensors of somebody else's mode for what they stand for, so the graphs, and their keys, are those
of real tensors (tests/watch/test_entry.py). What needs a value of a tensor raises.

Private names: torch._subclasses.fake_tensor.FakeTensorMode. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._subclasses.fake_tensor import FakeTensorMode


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made in here have no storage. Real ones, made while modules were imported, may be used as well."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield
