"""Switches the routing of torch.compile on and off in this process.

`bootstrap` calls `on_torch_imported()` once torch is there (`precompiled run`, the .pth, or `enable()` before torch);
`precompiled.enable()` and `precompiled.disable()` are `enable` and `disable` here. Whoever needs settings in a client
process takes them from `settings()`, so that `enable(mode=...)` counts.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from precompiled import bootstrap
from precompiled.errors import ConfigError, PrecompiledError

if TYPE_CHECKING:
    from precompiled.config import Settings

# Why torch.compile is not routed although it should be: None while all is well.
problem: str | None = None
# Settings given in Python: they count like flags of a command line.
_flags: dict[str, Any] = {}


def settings() -> Settings:
    """The settings of this process, with what `enable()` was given. Read anew on every call."""
    from precompiled import config

    return config.load(_flags)


def on_torch_imported() -> None:
    """Route torch.compile, unless the mode is "off". Called by `bootstrap`; never raises for a failure of ours."""
    global problem  # noqa: PLW0603
    try:
        _route()
        problem = None
    except Exception as error:  # noqa: BLE001 - we are inside somebody's `import torch`
        bootstrap.note("torch.compile is not routed", error)
        problem = bootstrap.problem
        if isinstance(error, ConfigError):
            # The user's own setting: staying silent would leave him to wonder why it has no effect.
            warnings.warn(f"precompiled is off in this process: {error}", RuntimeWarning, stacklevel=2)


def enable(mode: str | None = None) -> bool:
    """Route torch.compile in this process to precompiled, now or when torch is imported.

    `mode` ("eager", "wait", "lookup", "off") counts over the environment and the configuration files. Returns
    whether the hook is on: not with PRECOMPILED=0, which disables everything, nor with the mode "off". Unlike the
    hook at start-up this was asked for, so it raises what goes wrong (ConfigError for a bad mode or setting).
    """
    global problem  # noqa: PLW0603
    if mode is not None:
        from precompiled import config

        config.load({**_flags, "mode": mode})  # refuses a bad mode before anything has changed
        _flags["mode"] = mode
    if os.environ.get("PRECOMPILED") == "0":
        return False
    if settings().mode == "off":
        _unroute()
        return False
    if bootstrap.state() == "off":
        bootstrap.problem = problem = None
        bootstrap.install()
        if problem is not None:
            raise PrecompiledError(problem, "Run `precompiled doctor`", code="hook")
    elif bootstrap.state() != "waiting":
        _route()
        bootstrap.problem = problem = None
    return True


def disable() -> None:
    """Give torch.compile back its own backend in this process. What is compiled already goes on being used."""
    _flags.pop("mode", None)
    _unroute()


def state() -> str:
    """`off`, `waiting` (for torch to be imported), `on`, or `failed` (see `problem`)."""
    found = bootstrap.state()
    if found == "fired":
        return "on" if _routed else "off"
    return found


_routed = False


def _route() -> None:
    global _routed  # noqa: PLW0603
    if settings().mode == "off":
        return
    from precompiled.torch_internals import route

    route.install()
    _routed = True
    if settings().packages != "off":
        from precompiled.files import process_start
        from precompiled.torch_internals import package_switch

        process_start()  # kept, so that a fork of this process says when its modules were loaded, not when it forked
        package_switch.install()


def _unroute() -> None:
    global _routed  # noqa: PLW0603
    bootstrap.remove()
    # Only where it was installed: importing it for its removal would be an import for nothing. In reverse order: both
    # replace the same method of torch's.
    if "precompiled.torch_internals.package_switch" in sys.modules:
        from precompiled.torch_internals import package_switch

        package_switch.remove()
    if "precompiled.torch_internals.route" in sys.modules:
        from precompiled.torch_internals import route

        route.remove()
    _routed = False
