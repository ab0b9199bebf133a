"""package inspect: what is in a file of precompiled.save_package, without running any of it."""

from __future__ import annotations

from pathlib import Path

import click

from precompiled.cli.app import command
from precompiled.cli.output import Output, pairs, table
from precompiled.core.config import Settings
from precompiled.core.words import human_bytes


@click.group("package")
def package_command() -> None:
    """Look at package files (precompiled.save_package). Each command takes --json."""


@command("inspect")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def inspect_command(out: Output, settings: Settings, file: Path) -> None:
    """Verify every digest in FILE, and show for what it is. Nothing in it is run."""
    from precompiled.packages import portable_format

    index, members = portable_format.read(file)
    artifacts = sorted({name.split("/")[1].partition(".")[0] for name in members if name.startswith("artifacts/")})
    size = sum(len(data) for data in members.values())
    document = {
        "file": str(file), "function": f"{index.module}.{index.qualname}", "bytes": size, "made_by": index.made_by,
        "requires": index.requires, "functions": index.functions, "artifacts": artifacts,
        "native": sum(name.endswith(".so") for name in members),
    }  # fmt: skip

    def show() -> None:
        pairs(
            [
                ("function", f"{index.module}.{index.qualname}"),
                ("size", human_bytes(size)),
                ("artifacts", f"{len(artifacts)}"),
                *sorted(index.requires.items()),
            ]
        )
        click.echo()
        table(
            ("FRAME", "KIND", "GUARDS", "GRAPHS"),
            [(row["name"], row["kind"], str(row["guards"]), str(row["graphs"])) for row in index.functions],
            right=("GUARDS", "GRAPHS"),
        )
        click.echo("\nIts digests are right. It is code: load it only if you trust where it comes from.")

    out.result(document, show)


package_command.add_command(inspect_command)
