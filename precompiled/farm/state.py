"""The farm's state, for `farm status`, `status`, `cache stats` and `doctor` (parts.StateProtocol)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from precompiled.core.check import Check
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError
from precompiled.core.words import format_count
from precompiled.remote import helper_link, helper_process

HELPER_LOG = "Read helper.log in the store, which `precompiled cache dir` names"
UNUSED = {"state": "unused", "code": "", "reason": "", "running": False}


class FarmError(PrecompiledError):
    """The state of the farm cannot be queried."""

    code = "farm-unusable"


def ask_farm_state(settings: Settings) -> dict[str, Any]:
    """Wait until the cluster has answered or failed, and return the farm's state from the helper.

    Starts a helper if none runs. Raises FarmError.
    """
    if not settings.farm:
        raise FarmError("no farm is set", "Run `precompiled config set farm auto`, or set PRECOMPILED_FARM")
    try:
        helper_process.ensure(settings)
    except OSError as error:
        raise FarmError(f"the helper process cannot start: {error}", HELPER_LOG) from error
    found = helper_link.ask(settings.cache_dir, {"do": "farm"})
    if not found or found.get("farm") != settings.farm:
        raise FarmError("the helper process does not answer", HELPER_LOG)
    return {**found, "running": True}


def last_state(settings: Settings) -> dict[str, Any] | None:
    """The last state of the farm that the helper recorded; None if no farm is set."""
    if not settings.farm:
        return None
    state = helper_link.state(settings.cache_dir, helper_link.FARM_STATE)
    if state is None or state.get("farm") != settings.farm:
        return {"farm": settings.farm, **UNUSED}
    return {**state, "running": helper_link.greeting(settings.cache_dir) is not None}


def line(state: dict[str, Any]) -> str:
    """A farm's state in one line of text."""
    text = f"{state['farm']}: {state['state']}"
    if state["reason"]:
        return f"{text} ({state['code']}: {state['reason']})"
    if "sent" in state:
        text += f", {format_count(len(state['nodes']), 'node')}, {format_count(state['places'], 'place')}"
        text += f"; {state['out']} out, {state['waiting']} waiting; {state['sent']} sent, {state['compiled']} compiled"
        text += f", {state['taken_back']} taken back, {state['hedged']} hedged"
        for what in ("refused", "failed"):
            if codes := state[what]:
                text += f", {what}: {', '.join(f'{code} {count}' for code, count in sorted(codes.items()))}"
        if state["last"]:
            text += f" (the last: {state['last']})"
    return text


def checks(settings: Settings) -> Iterator[Check]:
    """Check that a node compiles, and that no job was refused or failed."""
    if not settings.farm:
        return
    try:
        state = ask_farm_state(settings)
    except FarmError as error:
        yield Check("farm", "warn", f"{error.code}: {error.message}", error.action)
        return
    wrong = {**state["refused"], **state["failed"]}
    code = state["code"] or next(iter(wrong), "")
    if code or state["state"] != "ok":  # ask_farm_state has waited for the cluster's answer
        yield Check("farm", "warn", line(state), f"`precompiled explain {code or 'farm-unusable'}`")
    else:
        yield Check("farm", "ok", line(state))
