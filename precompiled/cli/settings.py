"""config: every setting, its value, and where the value came from."""

from __future__ import annotations

from typing import Any

from precompiled.cli.app import command
from precompiled.cli.output import Output, table
from precompiled.core.config import NAMES, Settings
from precompiled.core.words import human_bytes, human_seconds


@command("config", overrides=True)
def config_command(out: Output, settings: Settings) -> None:
    """Show every setting, its value, and where the value came from."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in NAMES}
    document = {
        name: {"value": _plain(value), "origin": settings.origins[name]}
        for name, value in values.items()
    }
    rows = [(name, _with_unit(settings, name), settings.origins[name]) for name in NAMES]
    out.result(document, lambda: table(("SETTING", "VALUE", "ORIGIN"), rows))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return value if isinstance(value, (bool, int, float)) else str(value)


def _with_unit(settings: Settings, name: str) -> str:
    """As it can be set, and as people read it where that says more."""
    value = getattr(settings, name)
    if name.endswith("_bytes") and value:
        return f"{value} ({human_bytes(value)})"
    if name.endswith("_s"):
        return f"{value:g} s" if value < 120 else f"{value:g} s ({human_seconds(value)})"
    return settings.text(name)
