"""farm status: the Ray cluster that compiles jobs for which this host has no free worker."""

from __future__ import annotations

from typing import Any

from precompiled.cli.app import command
from precompiled.cli.output import Output, pairs, table
from precompiled.client import remote_helper
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError
from precompiled.core.words import format_count
from precompiled.remote import link

HELPER_LOG = "Read helper.log in the store, which `precompiled cache dir` names"
UNUSED = {"state": "unused", "code": "", "reason": "", "running": False}


class FarmError(PrecompiledError):
    """The state of the farm cannot be queried."""

    code = "farm-unusable"


@command("status", overrides=True, examples=["precompiled farm status", "precompiled farm status --set farm=auto"])
def status_command(out: Output, settings: Settings) -> int:
    """Show the cluster's nodes and the jobs it got from here.

    The exit status is 1 if no node of the cluster compiles.
    """
    state = ask_farm_state(settings)

    def show() -> None:
        pairs([("farm", line(state))])
        table(
            ("NODE", "ADDRESS", "PLACES"),
            [(node["name"], node["address"], str(node["places"])) for node in state["nodes"]],
            right=("PLACES",),
        )

    out.result(state, show)
    return int(state["state"] != "ok")


def ask_farm_state(settings: Settings) -> dict[str, Any]:
    """The farm's state from the helper, once the cluster has answered or failed. Starts a helper if none runs.

    Raises FarmError.
    """
    if not settings.farm:
        raise FarmError("no farm is set", "Run `precompiled config set farm auto`, or set PRECOMPILED_FARM")
    try:
        remote_helper.ensure(settings)
    except OSError as error:
        raise FarmError(f"the helper process cannot start: {error}", HELPER_LOG) from error
    found = link.ask(settings.cache_dir, {"do": "farm"})
    if not found or found.get("farm") != settings.farm:
        raise FarmError("the helper process does not answer", HELPER_LOG)
    return {**found, "running": True}


def last_state(settings: Settings) -> dict[str, Any] | None:
    """The last state of the farm that the helper recorded; None if no farm is set."""
    if not settings.farm:
        return None
    state = link.state(settings.cache_dir, link.FARM_STATE)
    if state is None or state.get("farm") != settings.farm:
        return {"farm": settings.farm, **UNUSED}
    return {**state, "running": link.greeting(settings.cache_dir) is not None}


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
