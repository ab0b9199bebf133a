"""A function that doubles a tensor, and helpers that compile it and return the report of its graph."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from support_session import ThisProcess

from precompiled.client.ledger import GraphReport

X = torch.randn(4, 6)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def call(here: ThisProcess, **compile_arguments: Any) -> GraphReport:
    """Compile and call ``double``, and return the report of the new graph. Fallback warnings are ignored."""
    before = len(here.reports())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        torch.testing.assert_close(here.call(double, X, **compile_arguments), X * 2)
    (graph,) = here.reports()[before:]
    return graph


def only(here: ThisProcess) -> GraphReport:
    (graph,) = here.reports()
    return graph


def no_descriptors(*_: Any) -> None:
    raise OSError(24, "Too many open files")
