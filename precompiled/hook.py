"""Switches the routing of torch.compile on and off in this process: `precompiled.enable()` and `precompiled.disable()`.

`bootstrap` waits for torch (`precompiled run`, the .pth, or `enable()` before torch), and `routing` does it.
"""

from __future__ import annotations

import os

from precompiled import bootstrap, routing
from precompiled.client.process import PROCESS
from precompiled.core import config
from precompiled.core.errors import PrecompiledError
from precompiled.version import switched_off


def enable(mode: str | None = None) -> bool:
    """Route torch.compile in this process to precompiled, now or when torch is imported.

    `mode` ("eager", "wait", "lookup", "off") counts over the environment and the configuration files. Returns
    whether the hook is on: not with PRECOMPILED=0, which disables everything, nor with the mode "off". Unlike the
    hook at start-up this was asked for, so it raises what goes wrong (ConfigError for a bad mode or setting).
    """
    if mode is not None:
        config.load({**PROCESS.given, "mode": mode})  # refuses a bad mode before anything has changed
        PROCESS.given["mode"] = mode
    if switched_off(os.environ):
        return False
    if PROCESS.settings().mode == "off":
        _unroute()
        return False
    if bootstrap.state() == "off":
        bootstrap.problem = None
        bootstrap.install()
        if bootstrap.problem is not None:
            raise PrecompiledError(bootstrap.problem, "Run `precompiled doctor`", code="hook")
    elif bootstrap.state() != "waiting":
        routing.route()
        bootstrap.problem = None
    return True


def disable() -> None:
    """Give torch.compile back its own backend in this process. What is compiled already goes on being used."""
    PROCESS.given.pop("mode", None)
    _unroute()


def state() -> str:
    """`off`, `waiting` (for torch to be imported), `on`, or `failed` (see `bootstrap.problem`)."""
    found = bootstrap.state()
    if found == "fired":
        return "on" if routing.is_routed() else "off"
    return found


def _unroute() -> None:
    bootstrap.remove()
    routing.unroute()
