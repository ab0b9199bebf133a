"""tools package: show the contents of a file of precompiled.save_package, without running its code."""

from __future__ import annotations

from pathlib import Path

import click

from precompiled.cli.app import command
from precompiled.cli.output import Output, pairs, table
from precompiled.core.config import Settings
from precompiled.core.words import human_bytes


@command("package", examples=["precompiled tools package model.pkg"])
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def package_command(out: Output, settings: Settings, file: Path) -> None:
    """Verify and show a file that `precompiled.save_package` wrote.

    Checks every digest, and shows which function and which environment FILE is for. Runs no code of the file.
    """
    from precompiled.packages import portable_format

    index, members = portable_format.read(file)
    artifacts = sorted({name.split("/")[1].partition(".")[0] for name in members if name.startswith("artifacts/")})
    size = sum(len(data) for data in members.values())
    document = {
        "file": str(file),
        "function": f"{index.module}.{index.qualname}",
        "bytes": size,
        "made_by": index.made_by,
        "requires": index.requires,
        "functions": index.functions,
        "artifacts": artifacts,
        "native": sum(name.endswith(".so") for name in members),
    }

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
        click.echo("\nAll digests match. The file contains code: load it only if you trust its origin.")

    out.result(document, show)
