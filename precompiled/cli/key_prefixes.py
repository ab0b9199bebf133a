"""Key arguments. In all commands, a key argument is the first four or more digits of exactly one key."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from precompiled.cli.output import SHOWN_DIGITS
from precompiled.core.config import Settings, load
from precompiled.core.errors import PrecompiledError, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Store

MIN_DIGITS = 4
MAX_COMPLETED = 200
_DIGITS = re.compile("[0-9a-f]*")


class KeyPrefix(click.ParamType):
    """A click type: the first digits of a key, in lower case.

    ``other``: whether other arguments are allowed. The command then checks the argument.
    """

    name = "key"

    def __init__(self, *, other: bool = False) -> None:
        self._other = other

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if self._other else check(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(key) for key in complete_key(ctx, incomplete)]


KEY = KeyPrefix()
KEY_OR_OTHER = KeyPrefix(other=True)


def looks_like_key(text: str) -> bool:
    return _DIGITS.fullmatch(text.lower()) is not None


def check(text: str) -> str:
    """Return the prefix in lower case. Raises UsageError if the prefix is too short or not hexadecimal."""
    if not looks_like_key(text):
        raise click.UsageError(
            f"{text!r} is not a key. A key has hexadecimal digits only: `precompiled cache ls` lists all keys"
        )
    if len(text) < MIN_DIGITS:
        raise click.UsageError(f"{text!r} is too short. Give at least the first {MIN_DIGITS} digits of the key")
    return text.lower()


def match(prefix: str, keys: Iterable[str]) -> str:
    """The one key that begins with ``prefix``, or "" if there is none. Raises StoreError for several keys."""
    found = sorted({key for key in keys if key.startswith(prefix)})
    if len(found) > 1:
        shown = ", ".join(key[: len(prefix) + 2] for key in found[:3])
        raise StoreError(
            f"{len(found)} keys begin with {prefix!r}: {shown}{', ...' if len(found) > 3 else ''}",
            "Give more digits",
            code="ambiguous-key",
        )
    return found[0] if found else ""


def match_all(prefixes: Sequence[str], keys: Collection[str], where: str, action: str) -> list[str]:
    """Return the one key that begins with each prefix. Raises StoreError if a prefix matches no key or several."""
    found = [match(prefix, keys) for prefix in prefixes]
    for prefix, key in zip(prefixes, found, strict=True):
        if not key:
            raise StoreError(f"{where} has no key that begins with {prefix!r}", action, code="no-such-key")
    return found


def resolve(store: Store, prefixes: Sequence[str], *, own: bool = False) -> list[str]:
    """Return the whole keys in a store that begin with these prefixes. ``own`` leaves out the store's bases.

    Raises StoreError if a prefix matches no key or several.
    """
    known = {key for key in (_own(store) if own else store.keys()) if fmt.is_key(key)}
    return match_all(prefixes, known, f"the store {store.root}", "`precompiled cache ls` lists all keys")


def _own(store: Store) -> set[str]:
    return {name.partition(".")[0] for name in store.names()}


def completion_settings(ctx: click.Context) -> Settings | None:
    """The settings for a shell completion; None if they are invalid."""
    try:
        return load({"cache_dir": ctx.params.get("cache_dir")})
    except PrecompiledError:
        return None


def complete_key(ctx: click.Context, incomplete: str) -> list[str]:
    """Shell completion: keys of the store, as `cache ls` shows them."""
    settings = completion_settings(ctx)
    if settings is None:
        return []
    try:
        keys = Store(settings.cache_dir, settings.base).keys()
    except (PrecompiledError, OSError):
        return []
    found = sorted(key[:SHOWN_DIGITS] for key in keys if fmt.is_key(key) and key.startswith(incomplete.lower()))
    return found[:MAX_COMPLETED]
