"""Implements parts.RemoteProtocol: the functions of the remote that other code calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precompiled.remote.helper_link import fetch_kernel, put_artifact, put_entry, put_kernel, turn, withdraw

if TYPE_CHECKING:
    from precompiled.core.config import Settings
    from precompiled.remote.ahead import Ahead

__all__ = [
    "begin",
    "ensure_helper",
    "fetch_kernel",
    "put_artifact",
    "put_entry",
    "put_kernel",
    "stop_helper",
    "turn",
    "withdraw",
]


def begin(settings: Settings) -> Ahead | None:
    from precompiled.remote import ahead  # not needed in a worker

    return ahead.begin(settings)


def stop_helper(settings: Settings) -> int | None:
    from precompiled.remote import helper_link

    found = helper_link.greeting(settings.cache_dir)
    if found is None or helper_link.ask(settings.cache_dir, {"do": "stop"}, wait_s=helper_link.GREETING_S) is None:
        return None
    pid = found.get("pid")
    return pid if isinstance(pid, int) else None


def ensure_helper(settings: Settings) -> None:
    from precompiled.remote import helper_process

    helper_process.ensure(settings)
