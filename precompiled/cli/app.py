"""Command groups. A group loads a command's module when the command is called, and turns errors into exit statuses."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from precompiled.cli import tree
from precompiled.cli.output import Output
from precompiled.core import config
from precompiled.core.errors import ConfigError, PrecompiledError
from precompiled.core.words import closest
from precompiled.version import VERSION

INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended
# The options of every command; the help shows them last.
_COMMON = ("--json", "--cache-dir", "--runtime-dir", "--set", "--help")
_RANGE = re.compile(r"\s*\[x>=?[\d.]+\]|; x>=?[\d.]+")  # how click shows a number's range


class Group(click.Group):
    """A group of tree.py. Loads commands lazily, so that `precompiled run` starts programs without delay."""

    def __init__(self, name: str, **extra: Any) -> None:
        super().__init__(name.rpartition(" ")[2], help=tree.GROUPS.get(name), **extra)
        self.path = name

    def list_commands(self, ctx: click.Context) -> list[str]:
        return tree.children(self.path)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        path = f"{self.path} {cmd_name}".strip()
        if not tree.exists(path):
            return None
        if path in tree.GROUPS:
            return Group(path)
        module = importlib.import_module(f"precompiled.{tree.COMMANDS[path]}")
        found = getattr(module, f"{cmd_name}_command")
        assert isinstance(found, click.Command)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        default = tree.DEFAULTS.get(self.path)
        asks_for_help = args[:1] in (["-h"], ["--help"])
        if default and args[:1] not in [[name] for name in self.list_commands(ctx)] and not asks_for_help:
            args = [default, *args]
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in _COMMON:
                error = click.NoSuchOption(
                    error.option_name,
                    f"Put {error.option_name} after the command: `{ctx.command_path} COMMAND {error.option_name}`",
                    ctx=ctx,
                )
            raise error from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing and not args[0].startswith("-"):
            near = tree.suggestion(self.path, args[0])
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] [ARGUMENTS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(_heading("Commands")):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.list_commands(ctx)])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\n`{ctx.command_path} COMMAND --help` shows options and examples.\n")

    def summary(self, ctx: click.Context, name: str) -> str:
        """The first sentence of a command's help, not shortened."""
        command = self.get_command(ctx, name)
        assert command is not None
        return command.get_short_help_str(limit=1000)


class Cli(Group):
    """The top group: shows commands in sections, and accepts their old names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["version"]:
            args = ["--version"]
        elif args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        old, args = tree.replace_old_name(args)
        if old and not ctx.resilient_parsing:
            new = tree.RENAMED[old]
            click.echo(
                f"precompiled: `{old}` is now `{new}`. Version {tree.REMOVED_IN} removes the old name.", err=True
            )
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # A dense format, so that the help and the next prompt fit a screen of 24 lines.
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] [ARGUMENTS]     (each COMMAND has --help)")
        formatter.write(f"{self.help}\n\n")
        for title, names in tree.sections().items():
            formatter.write(f"{_heading(title)}\n")
            formatter.write("".join(f"  {name:<10}{self.summary(ctx, name)}\n" for name in names))

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            sys.exit(super().main(arguments, *rest, **extra) or 0)
        except PrecompiledError as error:
            _fail(arguments, error.code, error.message, error.action)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "precompiled"
            _fail(arguments, "usage", _on_one_line(error.format_message()), f"See `{where} --help`", status=2)
        except click.ClickException as error:
            _fail(arguments, "error", error.format_message(), "")
        except click.Abort:
            click.echo("Interrupted.", err=True)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # The pipe's reader has ended (`| head`). Without dup2, Python would report the closed pipe at exit, when it
            # flushes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)


cli = Cli("", context_settings={"help_option_names": ["-h", "--help"]})
cli.help = "Compile each graph of torch.compile once per host, in the background."
click.version_option(VERSION, prog_name="precompiled")(cli)


def _heading(text: str) -> str:
    return click.style(text, bold=True)


# ---------------------------------------------------------------- a command

Body = Callable[..., int | None]


class Command(click.Command):
    """A command whose help has examples, and shows its own options before the common ones."""

    def __init__(self, *rest: Any, examples: Sequence[str] = (), **extra: Any) -> None:
        super().__init__(*rest, **extra)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser omits the context, so the error would name the wrong help
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section(_heading("Examples")):
                formatter.write("".join(f"  {example}\n" for example in self.examples))
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                (common if is_common(parameter) else own).append((record[0], _RANGE.sub("", record[1])))
        for title, records in (("Options", own), ("Options of every command", common)):
            if records:
                with formatter.section(_heading(title)):
                    formatter.write_dl(records)


def is_common(parameter: click.Parameter) -> bool:
    """Whether an option belongs to every command."""
    return any(option in _COMMON for option in parameter.opts)


def command(
    name: str,
    *,
    overrides: bool = False,
    needs_valid_settings: bool = True,
    json_help: str = "Print one JSON document.",
    cls: type[Command] = Command,
    **extra: Any,
) -> Callable[[Body], Command]:
    """Decorator for a command with `--json`, `--cache-dir` and `--runtime-dir`.

    The function gets an Output and the Settings first, and returns its exit status, or None for 0. `overrides`: also
    accept `--set NAME=VALUE`. `needs_valid_settings`: raise ConfigError for an invalid configuration file or variable.
    If it is false, defaults replace the invalid values, and the function reports the problems.
    """

    def decorate(function: Body) -> Command:
        @functools.wraps(function)
        def wrapper(
            as_json: bool, cache_dir: str | None, runtime_dir: str | None, sets: Sequence[str] = (), **rest: object
        ) -> int | None:
            flags = {"cache_dir": cache_dir, "runtime_dir": runtime_dir, **_parse_sets(sets)}
            settings = _load_settings(flags, needs_valid_settings)
            logging.basicConfig(level=settings.log.upper(), format="%(levelname)s %(name)s: %(message)s")
            return function(Output(as_json), settings, **rest)

        made = click.command(name, cls=cls, **extra)(wrapper)
        made.params += [
            click.Option(["--json", "as_json"], is_flag=True, help=json_help),
            click.Option(["--cache-dir"], metavar="DIR", help="Use the store in DIR (PRECOMPILED_CACHE_DIR)."),
            click.Option(["--runtime-dir"], metavar="DIR", help="Use the daemon in DIR (PRECOMPILED_RUNTIME_DIR)."),
        ]
        if overrides:
            text = "Override a setting for this command. `precompiled config` lists them."
            made.params.append(click.Option(["--set", "sets"], multiple=True, metavar="NAME=VALUE", help=text))
        return made

    return decorate


def _load_settings(flags: dict[str, str | None], needs_valid: bool) -> config.Settings:
    problems: list[ConfigError] = []
    try:
        settings = config.load(flags, problems)
    except ConfigError as error:  # a flag is wrong
        raise click.UsageError(str(error)) from error
    if problems and needs_valid:
        raise problems[0]
    return settings


def _parse_sets(sets: Sequence[str]) -> dict[str, str]:
    parsed = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes NAME=VALUE, not {text!r}")
        parsed[setting_name(name)] = value
    return parsed


def setting_name(text: str) -> str:
    """Return the name of a setting. ``text`` is the name itself (`mode`) or the variable's name (PRECOMPILED_MODE).
    Raises UsageError if the setting is unknown.
    """
    name = text.lower().removeprefix(config.ENV_PREFIX.lower())
    if name in config.NAMES:
        return name
    near = closest(name, config.NAMES)
    further = f"Did you mean {near!r}?" if near else "`precompiled config` lists all settings"
    raise click.UsageError(f"No such setting {text!r}. {further}")


def _on_one_line(message: str) -> str:
    """click's message in words: click puts each choice on a line of its own, and calls a number a range."""
    message = re.sub(r":\s+", ": ", message).replace(",\n\t", ", ")
    return message.replace("a valid integer range", "a whole number").replace("a valid float range", "a number")


def _fail(arguments: Sequence[str], code: str, message: str, action: str, status: int = 1) -> NoReturn:
    Output(_asks_for_json(arguments)).error(code, message, action)
    sys.exit(status)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` comes before `--`. Arguments after `--` belong to the command that `run` starts."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in ours
