"""Implements the commands under `precompiled remote keys`: create a signing key, and list, trust or forget keys."""

from __future__ import annotations

import click

from precompiled.cli.app import command
from precompiled.cli.output import Output, table
from precompiled.core.config import Settings
from precompiled.remote import keys


@command("new", examples=["precompiled remote keys new"])
def new_command(out: Output, settings: Settings) -> None:
    """Create your own signing key.

    This host trusts the key, and signs its uploads with it. Prints the public key and a command with which another host
    trusts the key.
    """
    key = keys.new()
    out.result(
        {"id": key.id, "public": str(key).strip(), "path": str(keys.folder() / keys.OWN)},
        f"Wrote {keys.folder() / keys.OWN}. Run this on each host that must trust the key:\n"
        f"  precompiled remote keys trust '{key} NAME'",
    )


@command("list", examples=["precompiled remote keys list"])
def list_command(out: Output, settings: Settings) -> None:
    """List the keys that this host trusts."""
    private = keys.own()
    rows = [(keys.public_of(private, "(your own)"), True)] if private is not None else []
    rows += [(key, False) for key in keys.trusted_keys().values()]
    document = [{"id": key.id, "name": key.name, "own": own, "public": str(key)} for key, own in rows]

    def show() -> None:
        if not rows:
            click.echo(f"This host trusts no key: {keys.folder()} has none. `precompiled remote keys new` creates one.")
        else:
            table(("ID", "NAME", "PUBLIC KEY"), [(key.id, key.name, str(key).partition(" ")[0]) for key, _ in rows])

    out.result({"keys": document, "folder": str(keys.folder())}, show)


@command("trust", examples=["precompiled remote keys trust 'PUBLIC-KEY alice'"])
@click.argument("public", nargs=-1, required=True, metavar="PUBLIC-KEY NAME")
def trust_command(out: Output, settings: Settings, public: tuple[str, ...]) -> None:
    """Trust a key: its owner's hosts can then run code as you.

    Give the line that `precompiled remote keys new` printed. Quotes are optional.
    """
    key = keys.PublicKey.parse(" ".join(public))
    path = keys.believe(key)
    text = f"This host trusts {key.id} {key.name}".rstrip() + "."
    out.result({"id": key.id, "name": key.name, "path": str(path)}, text)


@command("forget", examples=["precompiled remote keys forget 5b1c0e9a"])
@click.argument("key", metavar="ID")
def forget_command(out: Output, settings: Settings, key: str) -> None:
    """Stop trusting a key.

    The store keeps the objects that this host has fetched. `precompiled cache clear` removes them.
    """
    done = keys.disbelieve(key)
    text = f"This host {'no longer trusts' if done else 'did not trust'} {key}."
    out.result({"id": key, "forgotten": done}, text)
