"""config: every setting, its value, and where the value came from."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from precompiled.cli.app import command, setting_name
from precompiled.cli.output import Output, table
from precompiled.core import paths
from precompiled.core.config import ENV_PREFIX, MEANINGS, NAMES, Settings
from precompiled.core.words import human_bytes, human_seconds, sentence


class _Setting(click.ParamType):
    """A setting, by its name or its variable's."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return setting_name(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in NAMES if name.startswith(incomplete)]


@command("config", overrides=True)
@click.argument("names", nargs=-1, metavar="[NAME]...", type=_Setting())
def config_command(out: Output, settings: Settings, names: tuple[str, ...]) -> None:
    """Show every setting, its value, and where the value came from; of those that are named, also what they do."""
    document = {
        name: {"value": _plain(getattr(settings, name)), "origin": settings.origins[name], "meaning": MEANINGS[name]}
        for name in names or NAMES
    }

    def show() -> None:
        rows = [(name, _with_unit(settings, name), settings.origins[name]) for name in names or NAMES]
        table(("SETTING", "VALUE", "ORIGIN"), rows)
        file = paths.user_config_file()
        if file.is_relative_to(paths.NO_HOME):
            file = paths.SYSTEM_CONFIG
        for name in names:
            click.echo(f"\n{name}: {sentence(MEANINGS[name].replace('`', ''))}")
            value = "VALUE" if isinstance(getattr(settings, name), (bool, int, float)) else '"VALUE"'
            click.echo(f"  {ENV_PREFIX}{name.upper()}=VALUE, or `{name} = {value}` in {file}")

    out.result(document, show)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _with_unit(settings: Settings, name: str) -> str:
    """As it can be set, and as people read it where that says more."""
    value = getattr(settings, name)
    if name.endswith("_bytes") and value:
        return f"{value} ({human_bytes(value)})"
    if name.endswith("_s"):
        return f"{value:g} s" if value < 120 else f"{value:g} s ({human_seconds(value)})"
    return settings.text(name)
