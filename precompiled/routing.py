"""Puts torch.compile on its way to us in this process, once torch is there, and takes it back.

Below `bootstrap`, which calls ``route`` in the midst of somebody's ``import torch``; `hook` (``precompiled.enable``) is
above both. Nothing of torch's is imported with this file: a process whose mode is "off" pays for none of it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from precompiled.client.process import PROCESS
from precompiled.core import config
from precompiled.core.errors import ConfigError, NotServed, code_of

log = logging.getLogger("precompiled.route")

# What takes back what was routed, in the order in which it was put there.
_undo: list[Callable[[], None]] = []


def is_routed() -> bool:
    return bool(_undo)


def on_torch_imported() -> None:
    """Called by `bootstrap`, which keeps what this raises: we are inside of somebody's ``import torch``."""
    try:
        route()
    except Exception as error:
        if config.required_by_environment():
            _refuse_all(error)
        if not isinstance(error, ConfigError):
            raise
        # The user's own setting: staying silent would leave him to wonder why it has no effect.
        warnings.warn(f"precompiled is off in this process: {error}", RuntimeWarning, stacklevel=2)
        raise


def route() -> None:
    """Route from now on, unless the mode is "off"; idempotent. Raises ConfigError, and PrecompiledError on a torch that
    is not supported.
    """
    settings = PROCESS.settings()
    if settings.mode == "off":
        return
    from precompiled.torch_internals.client import inductor_route as routes

    routes.install(_serve, _went_around, _first_trace)
    _undo_by(routes.remove)
    if settings.has_helper:
        from precompiled.client import ahead

        ahead.begin(settings)
    if settings.packages != "off":
        from precompiled import packages
        from precompiled.core.files import process_start

        process_start()  # kept, so that a fork of this process says when its modules were loaded, not when it forked
        packages.install()
        _undo_by(packages.remove)


def _undo_by(remove: Callable[[], None]) -> None:
    if remove not in _undo:
        _undo.append(remove)


def unroute() -> None:
    """Give torch.compile back its own backend; idempotent. In reverse: both replace the same method of torch's."""
    while _undo:
        _undo.pop()()


# Imported on the first graph: switching on must cost nothing in programs that never compile.


def _serve(module: Any, options: Any, in_process: Callable[[], Any]) -> Any:
    try:
        from precompiled import backend
        from precompiled.torch_internals.client import garbage_collection

        garbage_collection.install()
    except Exception as error:  # a private name that this torch lacks
        if config.required_by_environment():
            raise _not_served(module, error) from error
        log.warning("torch.compile compiles in process: %s: %s", type(error).__name__, error)
        return in_process()
    return backend.compile_or_swap(module, options, in_process)


def _refuse_all(error: Exception) -> None:
    """``require``, where nothing can be routed: each compile raises (docs/decisions/0045)."""
    from precompiled.torch_internals.client import inductor_route as routes

    def refuse(module: Any) -> None:
        raise _not_served(module, error) from error

    routes.install_refusal(refuse)
    _undo_by(routes.remove)


def _not_served(module: Any, error: Exception) -> NotServed:
    from precompiled.torch_internals.graph.graph_names import graph_name

    return NotServed(graph_name(module), code_of(error, "internal-error"), f"torch.compile is not routed: {error}")


def _went_around(module: Any, ahead_of_time: bool) -> Callable[[], None]:
    from precompiled import backend

    return backend.went_around(module, ahead_of_time)


def _first_trace() -> None:
    from precompiled.client import session

    session.current().expect_graph()
