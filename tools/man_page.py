#!/usr/bin/env python3
"""Make docs/precompiled.1, the manual page, from the command line's help: `PYTHON tools/man_page.py`.

`make dist` puts it into the wheel (share/man/man1), so `man` finds it next to an installed `precompiled`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "precompiled.1"
sys.path.insert(0, str(ROOT))

from precompiled.cli.app import cli, is_common  # noqa: E402 - needs the sys.path entry above
from precompiled.core import config  # noqa: E402
from precompiled.version import VERSION  # noqa: E402


def page() -> str:
    return "\n".join([*_page(), ""])


def _page() -> Iterator[str]:
    yield f'.TH PRECOMPILED 1 "" "precompiled {VERSION}" "User Commands"'
    yield ".SH NAME"
    yield rf"precompiled \- {_roff((cli.help or '').strip().rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield r".B precompiled"
    yield r".I COMMAND"
    yield "[OPTIONS] [ARGUMENTS]"
    yield ".SH DESCRIPTION"
    yield _roff(
        "One daemon per host compiles each graph of torch.compile once, in the background. Meanwhile, programs run "
        "eager. They switch to compiled code between two calls. Later processes start with compiled code."
    )
    yield ".SH COMMANDS"
    with click.Context(cli, info_name="precompiled") as context:
        yield from _commands(cli, context)
        yield ".SH OPTIONS OF ALL COMMANDS"
        example = cli.get_command(context, "status")
        assert example is not None
        yield _roff("Some commands also take --set NAME=VALUE for any setting.")
        for parameter in example.params:
            if is_common(parameter) and isinstance(parameter, click.Option):
                yield from _option(parameter, context)
    yield ".SH EXIT STATUS"
    for status, meaning in (("0", "done"), ("1", "failure"), ("2", "wrong use"), ("130", "after Ctrl-C")):
        yield from _tagged(status, meaning)
    yield ".SH ENVIRONMENT"
    yield from _tagged("PRECOMPILED=0", "switches everything off")
    yield from _tagged(
        "PRECOMPILED_NAME",
        f"a setting, for NAME one of {', '.join(config.NAMES)}; `precompiled config` shows each value and its origin",
    )
    yield ".SH FILES"
    yield from _tagged("$XDG_CONFIG_HOME/precompiled/config.toml, /etc/precompiled.toml", "settings")
    yield from _tagged("$XDG_CACHE_HOME/precompiled", "the store")


def _commands(group: click.Group, context: click.Context, before: str = "") -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=f"{before}{name}", parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner, f"{before}{name} ")
            continue
        usage = " ".join(piece for piece in command.collect_usage_pieces(inner) if piece != "[OPTIONS]")
        yield f".SS {_roff(f'{before}{name} {usage}'.strip())}"
        for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))):
            if number:
                yield ".PP"
            if paragraph.startswith("\b\n"):  # lines that click does not wrap
                yield from (".nf", *map(_roff, paragraph.splitlines()[1:]), ".fi")
            else:
                yield _roff(re.sub(r"\s+", " ", paragraph.strip()))
        examples = getattr(command, "examples", ())
        if examples:
            yield from (".PP", ".RS", ".nf", *map(_roff, examples), ".fi", ".RE")
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not is_common(parameter):
                yield from _option(parameter, inner)


def _option(option: click.Option, context: click.Context) -> Iterator[str]:
    record = option.get_help_record(context)
    if record is not None:
        yield from _tagged(*record)


def _tagged(tag: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield rf"\fB{_roff(tag)}\fR"
    yield _roff(text)


def _roff(text: str) -> str:
    """Escape text for roff: keep hyphens, and prevent a line from becoming a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("~", r"\(ti")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    PAGE.write_text(page())
