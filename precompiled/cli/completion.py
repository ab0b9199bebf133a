"""tools completion: print click's script that lets a shell complete commands, options, keys and codes."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from precompiled.cli.app import cli, command
from precompiled.cli.output import Output
from precompiled.core.config import Settings

PROGRAM = "precompiled"
VARIABLE = "_PRECOMPILED_COMPLETE"


@command(
    "completion",
    examples=[
        'eval "$(precompiled tools completion bash)"      # in ~/.bashrc',
        "precompiled tools completion fish > ~/.config/fish/completions/precompiled.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(out: Output, settings: Settings, shell: str) -> None:
    """Print a script that makes your shell complete commands.

    The script also completes options, keys and reason codes. For zsh, use the bash line in ~/.zshrc.
    """
    found = get_completion_class(shell)
    assert found is not None
    # click's own source() checks the version of this host's bash, but the script may be for another host.
    made = found(cli, {}, PROGRAM, VARIABLE)
    script = made.source_template % made.source_vars()
    out.result({"shell": shell, "script": script}, script.rstrip("\n"))
