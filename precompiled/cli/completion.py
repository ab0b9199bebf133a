"""completion: what makes a shell complete commands, options and codes; made by click."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from precompiled.cli.app import cli, command
from precompiled.cli.output import Output
from precompiled.core.config import Settings

PROGRAM = "precompiled"
VARIABLE = "_PRECOMPILED_COMPLETE"


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(out: Output, settings: Settings, shell: str) -> None:
    """Print what makes a shell complete commands, options and codes.

    bash: `eval "$(precompiled completion bash)"` in ~/.bashrc. zsh: the same, with zsh, in ~/.zshrc. fish:
    `precompiled completion fish > ~/.config/fish/completions/precompiled.fish`.
    """
    found = get_completion_class(shell)
    assert found is not None
    # Without asking for bash's version, as click's own source() does: the shell may be another host's.
    made = found(cli, {}, PROGRAM, VARIABLE)
    script = made.source_template % made.source_vars()
    out.result({"shell": shell, "script": script}, script.rstrip("\n"))
