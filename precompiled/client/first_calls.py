"""Notes which artifact this process is about to load or first call, in case the process crashes (store/crashes.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precompiled.store.artifacts import Artifact, Store
from precompiled.store.crashes import FirstCalls, name_of

_lock = threading.Lock()
_of: dict[Path, FirstCalls] = {}


def load(store: Store, artifact: Artifact, load_code: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the code of ``load_code()``. Notes the artifact while the load or the code's first call runs.

    A backward does not count as a first call. Otherwise a program that ends with ``os._exit`` after one step could
    count as crashed in its backward.
    """
    with _lock:
        noted = _of.setdefault(store.root, FirstCalls(store.root))
    name = name_of(artifact)
    noted.begin(name)
    try:
        code = load_code()
    finally:
        noted.finish(name, called=False)
    run: Callable[..., Any]

    def first(*args: Any) -> Any:
        nonlocal run
        run = code
        noted.begin(name)
        try:
            return code(*args)
        finally:
            noted.finish(name, called=True)

    run = first

    def call(*args: Any) -> Any:
        return run(*args)

    return call


def close() -> None:
    """The process ends as usual."""
    for noted in list(_of.values()):
        noted.close()


def after_fork() -> None:
    """In a fork's child, leave the parent's notes to the parent."""
    global _lock  # noqa: PLW0603 - a thread of the parent may have held it
    _lock = threading.Lock()
    for noted in list(_of.values()):
        noted.after_fork()
