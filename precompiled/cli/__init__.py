"""The command line: `precompiled COMMAND`. See docs/reference/cli.md."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The entry point. Exits with 0 (success), 1 (failure) or 2 (wrong use); never returns."""
    from precompiled.cli.app import cli

    cli.main(prog_name="precompiled")
    raise AssertionError("click's main exits")
