"""tools completion: a script that makes a shell complete commands, options, keys and codes; made by click."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from precompiled.cli.app import cli, command
from precompiled.cli.output import Output
from precompiled.core.config import Settings

PROGRAM = "precompiled"
VARIABLE = "_PRECOMPILED_COMPLETE"


@command("completion", examples=[
    'eval "$(precompiled tools completion bash)"      # in ~/.bashrc',
    "precompiled tools completion fish > ~/.config/fish/completions/precompiled.fish",
])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(out: Output, settings: Settings, shell: str) -> None:
    """Print a script that makes your shell complete commands.

    It completes options, keys and reason codes, too. For zsh, do as for bash, in ~/.zshrc.
    """
    found = get_completion_class(shell)
    assert found is not None
    # Without asking for bash's version, as click's own source() does: the shell may be another host's.
    made = found(cli, {}, PROGRAM, VARIABLE)
    script = made.source_template % made.source_vars()
    out.result({"shell": shell, "script": script}, script.rstrip("\n"))
