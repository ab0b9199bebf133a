"""Routes torch.compile to precompiled in this process, once torch is imported, and undoes the routing.

`bootstrap` calls ``on_torch_imported`` at the program's ``import torch``; `hook` (``precompiled.enable``) calls
``route``. This file imports no module of torch, so the mode "off" costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from precompiled.client.process import PROCESS
from precompiled.core import bypassing, config, interruptions, user_warnings
from precompiled.core.errors import ConfigError, NotServed, code_of

log = logging.getLogger("precompiled.route")

# The functions that undo the steps of the routing, in the order of these steps.
_undo: list[Callable[[], None]] = []


def is_routed() -> bool:
    return bool(_undo)


def on_torch_imported() -> None:
    """Route torch.compile. `bootstrap` calls this function inside the program's ``import torch``, and records its
    exceptions.
    """
    try:
        route()
    except Exception as error:
        interruptions.pass_on(error)
        if config.required_by_environment():
            _refuse_all(error)
        if not isinstance(error, ConfigError):
            raise
        # Without the warning, the user would not learn that the setting has no effect.
        user_warnings.warn(f"precompiled is off in this process: {error}")
        raise


def route() -> None:
    """Route torch.compile unless the mode is "off"; idempotent.

    Raises ConfigError if a setting is invalid, and PrecompiledError if this torch is not supported.
    """
    settings = PROCESS.settings()
    if settings.mode == "off":
        return
    from precompiled.torch_internals.client import inductor_route as routes

    was_routed = is_routed()
    routes.install(_serve, _leave, _went_around, _first_trace)
    _undo_by(routes.remove)
    if settings.has_helper:
        from precompiled import parts

        if (remote := parts.REMOTE.get()) is not None:
            remote.begin(settings)
    from precompiled import packages
    from precompiled.core.files import process_start

    # This call caches the start time of this process. A later fork has the modules of this process, so it needs this
    # start time, and inherits it.
    process_start()
    packages.install(off=settings.packages == "off")
    _undo_by(packages.remove)
    if settings.triton != "off":
        from precompiled.client import triton_kernels

        triton_kernels.install(settings)
        _undo_by(triton_kernels.remove)
    if not was_routed:
        from precompiled.client import early_worker

        early_worker.request(settings)


def _undo_by(remove: Callable[[], None]) -> None:
    if remove not in _undo:
        _undo.append(remove)


def unroute() -> None:
    """Restore torch.compile's own backend. Idempotent. Undoes the last step first, because the hook and packages
    replace the same method of torch.
    """
    while _undo:
        _undo.pop()()


# The first graph imports the backend, so that a program that never compiles does not pay for it.


def _serve(module: object, options: Any, in_process: Callable[[], Any]) -> Any:
    try:
        from precompiled import backend
        from precompiled.torch_internals.client import garbage_collection

        garbage_collection.install()
    except Exception as error:  # for example, this torch lacks a private name
        interruptions.pass_on(error)
        if config.required_by_environment():
            raise _not_served(module, error) from error
        log.warning("torch.compile compiles in process: %s: %s", type(error).__name__, error)
        return in_process()
    return backend.compile_or_swap(module, options, in_process)


def _leave(module: object, in_process: Callable[[], Any]) -> Any:
    from precompiled import backend

    return backend.leave_to_torch(module, in_process)


def _refuse_all(error: Exception) -> None:
    """Make each compile raise, because ``require`` is set and routing failed (docs/decisions/0045)."""
    from precompiled.torch_internals.client import inductor_route as routes

    def refuse(module: object) -> None:
        raise _not_served(module, error) from error

    routes.install_refusal(refuse)
    _undo_by(routes.remove)


def _not_served(module: object, error: Exception) -> NotServed:
    from precompiled.torch_internals.client import dynamo_errors
    from precompiled.torch_internals.graph.graph_names import graph_name

    said = f"torch.compile is not routed: {error}"
    return dynamo_errors.unwrapped(NotServed(graph_name(module), code_of(error, "internal-error"), said), error)


def _went_around(module: object, ahead_of_time: bool) -> Callable[[], None]:
    from precompiled import backend

    return backend.went_around(module, ahead_of_time)


def _first_trace() -> None:
    from precompiled.client import session

    if not bypassing.is_active():
        session.current().daemon.expect_graph()
