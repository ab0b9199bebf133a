"""farm status: show the Ray cluster that compiles jobs when this host has no free worker."""

from __future__ import annotations

from precompiled.cli.app import command
from precompiled.cli.output import Output, pairs, table
from precompiled.core.config import Settings
from precompiled.farm.state import ask_farm_state, line


@command("status", overrides=True, examples=["precompiled farm status", "precompiled farm status --set farm=auto"])
def status_command(out: Output, settings: Settings) -> int:
    """Show the cluster's nodes and the jobs that this host sent.

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
