"""Checks that no ``except`` block for all exceptions swallows an exception of the program (core/interruptions.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import precompiled

ROOT = Path(precompiled.__file__).parent
# Folders and files whose code runs only in processes of precompiled, not in the user's program.
OWN_PROCESSES = (
    "cli/",
    "compiler/",
    "farm/",
    "remote/",
    "torch_internals/worker/",
    "watch/",
)
# Functions that run in threads that precompiled starts, where Python calls no signal handler of the program.
OWN_THREADS = {
    "client/connection.py": {"_work", "_replied"},
    "client/kernels_ahead.py": {"_begin", "_submit_for_this_gpu"},
    "client/pending.py": {"_work", "_guarded"},
    "client/progress.py": {"look"},
    "packages/publisher.py": {"_run", "_write"},
}


def test_each_handler_of_all_exceptions_passes_interruptions_on() -> None:
    places = {place for path in sorted(ROOT.rglob("*.py")) for place in _swallowing(path)}
    assert not places, f"these handlers need interruptions.pass_on, or an entry in {Path(__file__).name}: {places}"


def _swallowing(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    if name.startswith(OWN_PROCESSES):
        return
    allowed = OWN_THREADS.get(name, set())
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef) and function.name not in allowed:
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and _catches_all(node) and not _passes_on(node):
                    yield f"{name}:{node.lineno} ({function.name})"


def _catches_all(handler: ast.ExceptHandler) -> bool:
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else set()
    return handler.type is None or bool(names & {"Exception", "BaseException"})


def _passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether the handler calls pass_on first, or raises an error whose ``__cause__`` is the caught exception."""
    first = ast.unparse(handler.body[0])
    last = handler.body[-1]
    raises = isinstance(last, ast.Raise) and (last.exc is None or last.cause is not None)
    return "pass_on(" in first or raises
