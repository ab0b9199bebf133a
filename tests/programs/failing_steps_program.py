"""Makes each function of packages/ raise in turn, while functions are traced and while packages are used.

Usage: failing_steps_program.py PART PARTS. Takes only the functions whose number modulo PARTS is PART. Prints a line of
JSON: how many functions were made to raise, how many of them were called, which exceptions reached the program, and the
counts.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

import precompiled
import precompiled.packages
from precompiled.client import session
from precompiled.client.process import PROCESS

# These functions catch the exceptions of all other functions of packages/, or switch packages on and off.
NOT_MADE_TO_RAISE = {
    "contain_errors",
    "_contained",
    "_looking",
    "looking",
    "name_graph",
    "serialize_guards",
    "_note_failure",
    "failed",
    "tracing",
    "watching",
    "paused",
    "is_tracing",
    "_routed",
    "_end_contained",
    "install",
    "remove",
    "wrap",
    "_replace_all",
    "replacements",
    "switch_on",
    "switch_off",
    "flush",
    "__init__",
}
X = torch.ones(4, 4)
NUMBERS = itertools.count()
FOUND: dict[str, Any] = {"made to raise": 0, "called": 0, "reached the program": []}


class NoException(BaseException):
    """An error that does not derive from Exception. A program's objects may raise such errors."""


def functions() -> Iterator[tuple[Any, str]]:
    """Yields the module or class, and the name, of each function of packages/."""
    for info in pkgutil.walk_packages(precompiled.packages.__path__, "precompiled.packages."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == info.name:
                yield module, name
            elif inspect.isclass(value) and value.__module__ == info.name:
                yield from ((value, of) for of, member in vars(value).items() if inspect.isfunction(member))


def compiled(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a compiled function with separate code. All such functions have equal graphs."""
    scope: dict[str, Any] = {"torch": torch, "__name__": "__main__"}
    exec(f"def function_{number}(x):\n    return torch.mm(x, x)\n", scope)
    return torch.compile(scope[f"function_{number}"])


def attempt(owner: Any, name: str, error: BaseException) -> None:
    called: list[str] = []

    def raising(*_args: Any, **_named: Any) -> Any:
        called.append(name)
        raise error

    torch._dynamo.reset()
    with mock.patch.object(owner, name, raising):
        for function in (compiled(next(NUMBERS)), torch.compile(known)):
            try:
                assert torch.equal(function(X), torch.mm(X, X))
            except BaseException as reached:  # plain torch.compile would raise nothing
                FOUND["reached the program"].append([f"{owner.__name__}.{name}", repr(reached)[:200]])
        assert PROCESS.packages is not None
        PROCESS.packages.flush()
    FOUND["made to raise"] += 1
    FOUND["called"] += bool(called)


def known(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x)


def main() -> None:
    part, parts = map(int, sys.argv[1:])
    precompiled.enable()
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    torch.compile(known)(X)
    assert PROCESS.packages is not None
    PROCESS.packages.flush()
    every = [(owner, name) for owner, name in functions() if name not in NOT_MADE_TO_RAISE]
    unknown = NOT_MADE_TO_RAISE - {name for _owner, name in functions()}
    assert not unknown, f"packages/ has no function with these names: {unknown}"
    ledger = session.current().ledger
    with mock.patch.object(ledger, "count_reason", wraps=ledger.count_reason) as counting:
        for number, (owner, name) in enumerate(every):
            if number % parts == part:
                for error in (RuntimeError("made to raise"), NoException("made to raise")):
                    attempt(owner, name, error)
    # The ledger may lack counts that a thread has already sent to the daemon, so the calls of the ledger are counted.
    FOUND["counted"] = Counter(call.args[1] for call in counting.mock_calls if call.args[0] == "not_kept")
    print(json.dumps(FOUND))


if __name__ == "__main__":
    main()
