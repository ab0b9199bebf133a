"""A program whose connection cannot take a graph (no free descriptors, for example). It must be unaffected."""

from __future__ import annotations

import json
import warnings

import torch

import precompiled
from precompiled.client.connection import DaemonConnection


def refuse(*arguments: object) -> None:
    raise OSError(24, "Too many open files")


def main() -> None:
    DaemonConnection.submit = refuse  # type: ignore[method-assign, assignment]
    precompiled.enable()
    compiled = torch.compile(lambda x: x.sin() * 3)
    x = torch.randn(8)
    # Warnings are errors here, as in many test suites.
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        torch.testing.assert_close(compiled(x), x.sin() * 3)
    waited = precompiled.wait(60)
    (graph,) = precompiled.report()
    print(json.dumps({"state": graph.state, "source": graph.source, "reason": graph.reason, "waited": waited}))


if __name__ == "__main__":
    main()
