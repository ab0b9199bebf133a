"""doctor's check of the farm: does a node compile, and were jobs refused or failed?"""

from __future__ import annotations

from collections.abc import Iterator

from precompiled.cli import farm
from precompiled.cli.check import Check
from precompiled.core.config import Settings


def run(settings: Settings) -> Iterator[Check]:
    if not settings.farm:
        return
    try:
        state = farm.ask_farm_state(settings)
    except farm.FarmError as error:
        yield Check("farm", "warn", f"{error.code}: {error.message}", error.action)
        return
    wrong = {**state["refused"], **state["failed"]}
    code = state["code"] or next(iter(wrong), "")
    if code or state["state"] != "ok":  # ask_farm_state has waited for the cluster's answer
        yield Check("farm", "warn", farm.line(state), f"`precompiled explain {code or 'farm-unusable'}`")
    else:
        yield Check("farm", "ok", farm.line(state))
