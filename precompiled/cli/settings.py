"""config: show every setting with its value and origin. config set, unset: change the user's file."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import textwrap
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from precompiled.cli.app import command, setting_name
from precompiled.cli.daemon import ANSWER_TIMEOUT_S, ask_daemon
from precompiled.cli.output import Output, all_option, fits_screen, table
from precompiled.core import config, durable, paths
from precompiled.core.config import CLIENT_ONLY, ENV_PREFIX, MEANINGS, NAMES, Settings
from precompiled.core.errors import ConfigError, PrecompiledError
from precompiled.core.regular_file import read_bytes
from precompiled.core.words import human_bytes, human_seconds, sentence


class _Setting(click.ParamType):
    """A click type: a setting, by its own name or its variable's name."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name, equals, new = value.partition("=")
        if equals and setting_name(name):
            raise _not_a_setting(value, name, new)
        return setting_name(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in NAMES if name.startswith(incomplete)]


SETTING = _Setting()


class _ShownSetting(_Setting):
    """Like _Setting, but the callback converts the names."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


def _parse_names(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the settings. Raises UsageError, with the right command for ``config mode wait``."""
    names: list[str] = []
    for text in texts:
        try:
            names.append(SETTING.convert(text, param, ctx))
        except click.UsageError as error:
            if len(texts) == 2 and names:
                raise _not_a_setting(text, names[0], text) from error
            raise
    return tuple(names)


def _not_a_setting(text: str, name: str, value: str) -> click.UsageError:
    advice = f"To set {name}: `precompiled config set {name} {shlex.quote(value)}`"
    return click.UsageError(f"No such setting {text!r}. {advice}")


@command(
    "show",
    overrides=True,
    needs_valid_settings=False,
    examples=["precompiled config", "precompiled config mode workers"],
)
@click.argument("names", nargs=-1, metavar="[NAME]...", type=_ShownSetting(), callback=_parse_names)
@all_option("Show the values of all settings on a terminal, too.")
def show_command(out: Output, settings: Settings, names: tuple[str, ...], show_all: bool) -> int:
    """Show settings and where each value comes from.

    `precompiled config` alone does the same. On a terminal, shows the values that differ from the default. With a NAME,
    it also says what the setting does and how to set it. The exit status is 1 if a file or variable is invalid.
    """
    document = {
        name: {"value": _plain(getattr(settings, name)), "origin": settings.origins[name], "meaning": MEANINGS[name]}
        for name in names or NAMES
    }

    def show() -> None:
        shown = names or NAMES
        is_short = fits_screen(show_all) and not names
        defaults = [name for name in shown if is_short and settings.origins[name] == "default"]
        rows = [(name, _with_unit(settings, name), settings.origins[name]) for name in shown if name not in defaults]
        if rows:
            table(("SETTING", "VALUE", "ORIGIN"), rows)
        if defaults:
            text = f"Settings with their default (--all shows the values): {', '.join(defaults)}"
            click.echo(textwrap.fill(text, min(80, shutil.get_terminal_size().columns)))
        for name in names:
            click.echo(f"\n{name}: {sentence(MEANINGS[name].replace('`', ''))}")
            click.echo(f"  To set it: {ENV_PREFIX}{name.upper()}=VALUE, or `precompiled config set {name} VALUE`")

    out.result(document, show)
    return int(_note_problems(out))


# `set` and `unset` may repair an invalid file.
@command(
    "set",
    needs_valid_settings=False,
    context_settings={"ignore_unknown_options": True},  # a value may begin with "-"
    examples=["precompiled config set mode wait", "precompiled config set workers 4"],
)
@click.argument("name", type=SETTING)
@click.argument("value")
def set_command(out: Output, settings: Settings, name: str, value: str) -> None:
    """Set a setting in your configuration file.

    The command checks VALUE first and keeps the other lines of the file. A size may have a unit: 500M, 20GB or 20GiB.
    Environment variables take precedence over the file. A running daemon uses its new settings after
    `precompiled daemon restart`.
    """
    try:
        parsed = config.parse(name, value)
    except ValueError as error:
        raise click.UsageError(f"{name} = {value!r} is not possible: {error}") from error
    line = f"{name} = {_toml(parsed)}"
    file, _ = _change(name, line)
    readable = f" ({human_bytes(parsed)})" if name.endswith("_bytes") and parsed else ""
    text = f"Wrote `{line}`{readable} to {file}.{_precedence(name)}{_restart_note(settings, name)}"
    out.result({"file": str(file), "name": name, "value": _plain(parsed)}, text)
    _note_problems(out)


@command("unset", needs_valid_settings=False, examples=["precompiled config unset mode workers"])
@click.argument("names", nargs=-1, required=True, metavar="NAME...", type=_ShownSetting())
def unset_command(out: Output, settings: Settings, names: tuple[str, ...]) -> None:
    """Remove settings from your configuration file.

    Then their defaults apply. NAME may also be an unknown key of the file. The command keeps the other lines of the
    file. A running daemon uses its new settings after `precompiled daemon restart`.
    """
    file = paths.user_config_file()
    content = _content(file)
    # A name that the file does not have must be the name of a setting. Check all names before the first change.
    names = tuple(name if _with_line(content, name, "") != content else setting_name(name) for name in names)
    removed = {name: _change(name, "")[1] for name in dict.fromkeys(names)}
    lines = [
        (f"Removed {name} from {file}." if is_changed else f"{file} does not set {name}.")
        + _precedence(name)
        + _restart_note(settings, name)
        for name, is_changed in removed.items()
    ]
    found = [{"name": name, "removed": is_changed} for name, is_changed in removed.items()]
    out.result({"file": str(file), "settings": found}, "\n".join(lines))
    _note_problems(out)


def _note_problems(out: Output) -> bool:
    """Print all invalid settings of files and variables. Returns whether there are any."""
    problems = config.find_problems()
    for error in problems:
        out.note(f"precompiled: {error}")
    return bool(problems)


def _restart_note(settings: Settings, name: str) -> str:
    """If the running daemon has an old value of a setting, a sentence that says to restart the daemon; otherwise ""."""
    if name not in NAMES or name in CLIENT_ONLY or settings.runtime_dir == paths.SYSTEM_RUNTIME_DIR:
        return ""
    from precompiled import wire

    try:
        reply = ask_daemon(settings, wire.Status(), ANSWER_TIMEOUT_S)
    except PrecompiledError:
        return ""
    new = config.load(problems=[]).text(name)
    old = reply.settings.get(name, new)
    restart = "`precompiled daemon restart`"
    return "" if old == new else f"\nThe running daemon (pid {reply.pid}) keeps {name} = {old} until {restart}."


def _precedence(name: str) -> str:
    variable = ENV_PREFIX + name.upper()
    return f"\n{variable} is set in this shell, and takes precedence." if os.environ.get(variable) else ""


def _change(name: str, line: str) -> tuple[Path, bool]:
    """Write a setting's new line to the user's file, or remove the setting if ``line`` is "".

    Returns the file, and whether its text has changed. Raises ConfigError.
    """
    file = paths.user_config_file()
    if file.is_relative_to(paths.NO_HOME):
        raise ConfigError(
            "you have no configuration file, because this user has no home directory",
            f"Set {ENV_PREFIX}{name.upper()} instead, or XDG_CONFIG_HOME",
        )
    before = _content(file)
    after = _with_line(before, name, line)
    try:
        found = config.parse_toml(after)
    except ValueError as error:
        action = "Correct the file, then run the command again"
        raise ConfigError(f"{file} is not valid TOML: {error}", action) from error
    if (name in found) != bool(line):  # the new line would belong to a table, or ``name`` is a table
        raise ConfigError(f"{file} has a table, and settings have none", "Remove the table, then run the command again")
    if after != before:
        _write(file.resolve(), after)
    return file, after != before


def _content(file: Path) -> str:
    try:
        return read_bytes(file).decode()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:  # the path is a directory, or the file is not text
        raise ConfigError(f"{file} cannot be read: {error}", "Make it a text file, or remove it") from error


def _with_line(text: str, name: str, line: str) -> str:
    """A configuration file's text with a new line for a setting, or without the setting. All other lines stay."""
    lines = text.splitlines()
    new = [line] if line else []
    start = next(
        (at for at, found in enumerate(lines) if re.match(rf"\s*([\"']?){re.escape(name)}\1\s*=", found)), None
    )
    if start is None:
        return "\n".join([*lines, *new, ""]) if line else text
    end = start + 1
    while end < len(lines) and not _is_toml("\n".join(lines[start:end])):  # the old value is a list over several lines
        end += 1
    return "\n".join([*lines[:start], *new, *lines[end:], ""])


def _is_toml(text: str) -> bool:
    try:
        config.parse_toml(text)
    except ValueError:
        return False
    return True


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o644
        with durable.replacing(file, mode) as written:
            written.write(text.encode())
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", "Check its owner and mode") from error


def _toml(value: object) -> str:
    """A value in TOML. TOML's strings and lists of strings are written like JSON's."""
    if isinstance(value, tuple):
        return json.dumps([str(item) for item in value], ensure_ascii=False)
    return json.dumps(_plain(value) if value is not None else "", ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _with_unit(settings: Settings, name: str) -> str:
    """A setting's value in the form that `config set` accepts. For bytes and seconds, a readable form follows."""
    value = getattr(settings, name)
    if name.endswith("_bytes") and value:
        return f"{value} ({human_bytes(value)})"
    if name.endswith("_s"):
        return f"{value:g} s" if value < 120 else f"{value:g} s ({human_seconds(value)})"
    return settings.text(name)
