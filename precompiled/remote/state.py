"""The remote's state, for `status`, `cache stats` and `doctor` (parts.StateProtocol)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precompiled.core.check import Check
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError
from precompiled.remote import helper_link
from precompiled.remote.errors import RemoteError

if TYPE_CHECKING:
    from precompiled.remote import transfer

NOT_SET = "no remote is set"


def open_remote(settings: Settings) -> transfer.Transfer:
    """Open the store and its remote. Raises RemoteError."""
    from precompiled.remote import transfer, trusting

    if not settings.remote:
        raise RemoteError(
            NOT_SET,
            "Run `precompiled config set remote s3://bucket/prefix`, or set PRECOMPILED_REMOTE",
            code="remote-unusable",
        )
    return transfer.open_transfer(
        settings.cache_dir, settings.remote, settings.remote_timeout_s, trusting.trust(settings.remote_unsigned)
    )


def last_state(settings: Settings) -> dict[str, Any] | None:
    """The last state that the remote's helper recorded; None if no remote is set."""
    if not settings.remote:
        return None
    state = helper_link.state(settings.cache_dir)
    if state is None or state.get("remote") != settings.remote:
        return {"remote": settings.remote, "state": "unused", "code": "", "reason": "", "running": False}
    return {**state, "running": helper_link.greeting(settings.cache_dir) is not None}


def line(state: dict[str, Any]) -> str:
    """A helper's state in one line of text."""
    text = f"{state['remote']}: {state['state']}"
    if state.get("reason"):
        text += f" ({state['code']}: {state['reason']})"
    if "fetched" in state:
        text += f"; {state['fetched']} fetched, {state['put']} put, {state['absent']} not there"
        for what in ("refused", "failed"):
            if counts := state.get(what):
                text += f", {what}: {', '.join(f'{code} {count}' for code, count in sorted(counts.items()))}"
        if state.get("given_up"):
            text += f", {state['given_up']} given up"
        if state.get("last"):
            text += f" (the last: {state['last']})"
    return text


def problem(settings: Settings) -> PrecompiledError | None:
    """Send the remote a request. Returns the problem, or None if the remote answers."""
    try:
        open_remote(settings).bucket.listed("artifacts")
    except RemoteError as error:
        return error
    return None


def checks(settings: Settings) -> Iterator[Check]:
    """Check that the remote answers, and that this host trusts its objects."""
    if not settings.remote:
        return
    why = problem(settings)
    if why is None:
        yield Check("remote", "ok", f"{settings.remote} answers")
    else:
        yield Check("remote", "warn", f"{why.code}: {why.message}", why.action or "Check its address")
    if settings.remote_unsigned:
        yield Check(
            "remote trust",
            "warn",
            f"each user who can write to {settings.remote} can run code as you (remote_unsigned)",
            "Create a key with `precompiled remote keys new`, and unset `remote_unsigned`",
        )
    state = last_state(settings)
    wrong = {**((state or {}).get("refused") or {}), **((state or {}).get("failed") or {})}
    # If the remote cannot be used at all (no key, for example), the check above already states the problem and the
    # remedy.
    is_known = why is not None and why.code == (state or {}).get("code") == "remote-unusable"
    if state is not None and (wrong or (state.get("reason") and not is_known)):
        code = state.get("code") or next(iter(wrong))
        yield Check("remote helper", "warn", line(state), f"`precompiled explain {code}`")
