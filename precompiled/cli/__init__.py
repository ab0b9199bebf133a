"""The command line: `precompiled COMMAND`. See docs/reference/cli.md."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The entry point: never returns, exits 0 (done), 1 (it failed) or 2 (wrong use)."""
    from precompiled.cli.app import cli

    cli.main(prog_name="precompiled")
    raise AssertionError("click's main exits")
