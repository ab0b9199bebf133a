"""keys new, list, trust, forget: by whom an object of a remote must be signed to be believed here."""

from __future__ import annotations

import click

from precompiled.cli.app import command
from precompiled.cli.output import Output, table
from precompiled.core.config import Settings
from precompiled.remote import keys


@click.group("keys")
def keys_command() -> None:
    """The keys that sign what is in a remote. Each command takes --json."""


@command("new")
def new_command(out: Output, settings: Settings) -> None:
    """Make your own key: your hosts sign with it what they put into a remote, and believe it.

    Prints the public key, for `precompiled keys trust` on other hosts.
    """
    key = keys.new()
    out.result(
        {"id": key.id, "public": str(key).strip(), "path": str(keys.folder() / keys.OWN)},
        f"Wrote {keys.folder() / keys.OWN}. Who is to believe it runs:\n  precompiled keys trust '{key} NAME'",
    )


@command("list")
def list_command(out: Output, settings: Settings) -> None:
    """Show which keys are believed on this host."""
    private = keys.own()
    rows = [(keys.public_of(private, "(your own)"), True)] if private is not None else []
    rows += [(key, False) for key in keys.believed().values()]
    document = [{"id": key.id, "name": key.name, "own": own, "public": str(key)} for key, own in rows]

    def show() -> None:
        if not rows:
            click.echo(f"No key is believed: there is none in {keys.folder()}.")
        else:
            table(("ID", "NAME", "PUBLIC KEY"), [(key.id, key.name, str(key).partition(" ")[0]) for key, _ in rows])

    out.result({"keys": document, "folder": str(keys.folder())}, show)


@command("trust")
@click.argument("public", metavar="'PUBLIC-KEY NAME'")
def trust_command(out: Output, settings: Settings, public: str) -> None:
    """Believe a key from now on: what its owner's hosts put into a remote may run code as you."""
    key = keys.PublicKey.parse(public)
    path = keys.believe(key)
    text = f"Believed from now on: {key.id} {key.name}".rstrip()
    out.result({"id": key.id, "name": key.name, "path": str(path)}, text)


@command("forget")
@click.argument("key", metavar="ID")
def forget_command(out: Output, settings: Settings, key: str) -> None:
    """Believe a key no more. What was fetched stays in the store; `precompiled clear` removes it."""
    done = keys.disbelieve(key)
    out.result({"id": key, "forgotten": done}, f"Forgot {key}." if done else f"{key} was not believed.")


for _command in (new_command, list_command, trust_command, forget_command):
    keys_command.add_command(_command)
