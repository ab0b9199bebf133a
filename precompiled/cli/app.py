"""The group of all commands: imports a command's module when it is asked for, and turns errors into exit statuses."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from precompiled.cli.output import Output
from precompiled.core import config
from precompiled.core.errors import ConfigError, PrecompiledError
from precompiled.version import VERSION

# Command -> its module, in the order of `precompiled --help`. The click command is the module's `<name>_command`.
COMMANDS = {
    "run": "precompiled.cli.switch",
    "enable": "precompiled.cli.switch",
    "disable": "precompiled.cli.switch",
    "start": "precompiled.cli.daemon",
    "stop": "precompiled.cli.daemon",
    "restart": "precompiled.cli.daemon",
    "serve": "precompiled.cli.daemon",
    "status": "precompiled.cli.daemon",
    "stats": "precompiled.cli.daemon",
    "top": "precompiled.cli.top",
    "cancel": "precompiled.cli.jobs",
    "retry": "precompiled.cli.jobs",
    "metrics": "precompiled.cli.metrics",
    "trace": "precompiled.cli.timeline",
    "timeline": "precompiled.cli.timeline",
    "watch": "precompiled.cli.watch",
    "ls": "precompiled.cli.store",
    "show": "precompiled.cli.store",
    "explain": "precompiled.cli.explain",
    "package": "precompiled.cli.package",
    "bake": "precompiled.cli.bake",
    "tune": "precompiled.cli.tune",
    "push": "precompiled.cli.remote",
    "pull": "precompiled.cli.remote",
    "sync": "precompiled.cli.remote",
    "remote": "precompiled.cli.remote",
    "farm": "precompiled.cli.farm",
    "keys": "precompiled.cli.keys",
    "clear": "precompiled.cli.store",
    "gc": "precompiled.cli.store",
    "doctor": "precompiled.cli.doctor",
    "config": "precompiled.cli.settings",
    "completion": "precompiled.cli.completion",
}
INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended


class Cli(click.Group):
    """Loads commands lazily: `precompiled run` starts programs, so it must not import tables and sockets first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = getattr(importlib.import_module(module), f"{cmd_name}_command")
        assert isinstance(found, click.Command)
        return found

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            sys.exit(super().main(arguments, *rest, **extra) or 0)
        except PrecompiledError as error:
            _fail(arguments, error.code, error.message, error.action)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "precompiled"
            _fail(arguments, "usage", error.format_message(), f"See `{where} --help`", status=2)
        except click.ClickException as error:
            _fail(arguments, "error", error.format_message(), "")
        except click.Abort:
            click.echo("Interrupted; nothing more was done.", err=True)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader of a pipe has ended (`| head`). Python would report it again when it flushes stdout at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)


@click.group(cls=Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="precompiled")
def cli() -> None:
    """Compile torch.compile's graphs once per host, in the background, for every process."""


Body = Callable[..., int | None]


def command(
    name: str, *, overrides: bool = False, raises: bool = True, **extra: Any
) -> Callable[[Body], click.Command]:
    """A command that takes `--json` and the directories, and is called with an Output and the Settings first.

    `overrides`: it also takes `--set NAME=VALUE` for every other setting. `raises`: or a file or variable that cannot
    be used is said, and counts as none. The function returns its exit status, or None for 0.
    """

    def decorate(function: Body) -> click.Command:
        @functools.wraps(function)
        def wrapper(
            as_json: bool, cache_dir: str | None, runtime_dir: str | None, sets: Sequence[str] = (), **rest: Any
        ) -> int | None:
            flags = {"cache_dir": cache_dir, "runtime_dir": runtime_dir, **_parse_sets(sets)}
            settings = _load_settings(flags, raises=raises)
            logging.basicConfig(level=settings.log.upper(), format="%(levelname)s %(name)s: %(message)s")
            return function(Output(as_json), settings, **rest)

        decorated: Any = wrapper
        if overrides:
            decorated = click.option(
                "--set", "sets", multiple=True, metavar="NAME=VALUE", help="Override any setting (see `config`)."
            )(decorated)
        decorated = click.option(
            "--runtime-dir", metavar="DIR", help="Directory of the daemon's socket (PRECOMPILED_RUNTIME_DIR)."
        )(decorated)
        decorated = click.option(
            "--cache-dir", metavar="DIR", help="Directory of the store (PRECOMPILED_CACHE_DIR)."
        )(decorated)
        decorated = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(decorated)
        return click.command(name, **extra)(decorated)

    return decorate


def _load_settings(flags: dict[str, str | None], *, raises: bool) -> config.Settings:
    try:
        return config.load(flags)
    except ConfigError as error:
        try:
            config.load()  # raises where a variable or a file is wrong: a failure
        except ConfigError:
            if raises:
                raise
            click.echo(f"precompiled: {error}", err=True)
            return config.Settings(origins=dict.fromkeys(config.NAMES, "default"))
        raise click.UsageError(str(error)) from error  # a wrong flag is wrong use


def _parse_sets(sets: Sequence[str]) -> dict[str, str]:
    parsed = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes NAME=VALUE, not {text!r}")
        parsed[setting_name(name)] = value
    return parsed


def setting_name(text: str) -> str:
    """The setting of this name, or of this variable's: PRECOMPILED_MODE is `mode`. Raises UsageError."""
    from difflib import get_close_matches

    name = text.lower().removeprefix(config.ENV_PREFIX.lower())
    if name in config.NAMES:
        return name
    near = get_close_matches(name, config.NAMES, 1)
    further = f"did you mean {near[0]}?" if near else "`precompiled config` lists them"
    raise click.UsageError(f"there is no setting {text!r}; {further}")


def _fail(arguments: Sequence[str], code: str, message: str, action: str, status: int = 1) -> NoReturn:
    Output(_asks_for_json(arguments)).error(code, message, action)
    sys.exit(status)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` is given before `--`: arguments behind it belong to the command that `run` starts."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in ours
