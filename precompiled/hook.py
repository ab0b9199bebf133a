"""Switches the hook on and off in this process: `precompiled.enable()` and `precompiled.disable()`.

`bootstrap` waits until the program imports torch. Then `routing` routes torch.compile.
"""

from __future__ import annotations

import os

from precompiled import bootstrap, routing
from precompiled.client.process import PROCESS
from precompiled.core import config
from precompiled.core.errors import ConfigError, PrecompiledError
from precompiled.version import switched_off


def enable(mode: str | None = None) -> bool:
    """Route torch.compile in this process to precompiled, now or when torch is imported.

    `mode` ("eager", "wait", "lookup", "off") overrides the environment and the configuration files. Returns whether the
    hook is on: PRECOMPILED=0 and the mode "off" keep the hook off. Raises ConfigError for a bad mode or setting, and
    PrecompiledError if routing fails. (The hook raises no errors when it is switched on at the start of Python.)
    """
    if mode is not None:
        try:
            config.parse("mode", mode)
        except ValueError as error:
            raise ConfigError(f"enable() got the mode {mode!r}: {error}", "Pass one of these modes, or none") from error
        config.load({**PROCESS.given, "mode": mode})  # raises for a bad mode before anything has changed
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
    """Restore torch.compile's own backend in this process. Compiled graphs stay in use."""
    PROCESS.given.pop("mode", None)
    _unroute()


def state() -> str:
    """The hook's state: `off`, `waiting` (for torch's import), `on`, or `failed` (see `bootstrap.problem`)."""
    found = bootstrap.state()
    if found == "fired":
        return "on" if routing.is_routed() else "off"
    return found


def _unroute() -> None:
    bootstrap.remove()
    routing.unroute()
