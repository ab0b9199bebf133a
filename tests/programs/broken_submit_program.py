"""A program that cannot submit its graph, because the connection raises an error (if no descriptor is free, for
example).

The program must get its result without an error or a warning.
"""

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
    # Many test suites treat warnings as errors.
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        torch.testing.assert_close(compiled(x), x.sin() * 3)
    waited = precompiled.wait(60)
    (graph,) = precompiled.report()
    print(json.dumps({"state": graph.state, "source": graph.source, "reason": graph.reason, "waited": waited}))


if __name__ == "__main__":
    main()
