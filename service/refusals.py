"""Replies to clients whose job is rejected, or ends without an artifact."""

from __future__ import annotations

from precompiled.service.events import Reply, Submitted

from precompiled import wire
from precompiled.core.errors import (
    DEVICE_LOST,
    GPU_UNAVAILABLE,
    MADE_UP_DEVICE,
    NO_COMPILER,
    NO_COMPILER_ACTION,
    STORE_UNWRITABLE,
)

# Failures that are not the graph's fault, so the store has no failure record. The client gets the code, and advice if
# the message contains none.
WITHOUT_A_RECORD = {
    DEVICE_LOST: "It is compiled by the next process that asks",
    GPU_UNAVAILABLE: "A worker needs a context there, and room for what it measures",
    MADE_UP_DEVICE: "It is compiled where the GPU is",
    NO_COMPILER: NO_COMPILER_ACTION,
    STORE_UNWRITABLE: "`precompiled doctor` says which directory cannot be written",
    "store-unreadable": "",
    "store-untrusted": "",
    "too-many-variants": "`precompiled cache clear KEY` makes room; or mark fewer sizes dynamic",
}

STOPPING = wire.Rejected("stopping", "The daemon is stopping", "Submit again when it is back")
CANCELLED = wire.Rejected("cancelled", "The watch that asked for it has newer sources", "")
GIVEN_UP = wire.Rejected("job-cancelled", "A user has cancelled its compile", "The next process asks again")


def advise_retry(key: str) -> str:
    """Say what a user can do about a quarantined key."""
    return (
        f"This process runs the graph eager until it ends. `precompiled daemon retry {key[:12]}` ends the quarantine "
        "for later processes"
    )


def make_rejection(event: Submitted, code: str, message: str, action: str) -> Reply:
    return Reply(event.client, wire.Rejected(code, message, action, event.message.id, event.message.key))
