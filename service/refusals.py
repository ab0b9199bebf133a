"""Replies to clients whose job is rejected, or ends without an artifact."""

from __future__ import annotations

from precompiled.service.events import Reply, Submitted

from precompiled import wire
from precompiled.core.errors import (
    DEVICE_LOST,
    GPU_UNAVAILABLE,
    KERNEL_AHEAD,
    MADE_UP_DEVICE,
    NO_COMPILER,
    NO_COMPILER_ACTION,
    STORE_UNWRITABLE,
)

# Failures that the graph did not cause, so the store has no failure record. The client gets the code, and this advice
# if the message contains none.
WITHOUT_A_RECORD = {
    DEVICE_LOST: "The next process that needs the graph submits it again",
    GPU_UNAVAILABLE: "A worker needs a CUDA context, and memory for its measurements",
    KERNEL_AHEAD: "Nothing to do: the program compiles the kernel",
    MADE_UP_DEVICE: "Compile the graph on a host with the GPU",
    NO_COMPILER: NO_COMPILER_ACTION,
    STORE_UNWRITABLE: "`precompiled doctor` names the directory that cannot be written",
    "store-unreadable": "",
    "store-untrusted": "",
    "too-many-variants": "Run `precompiled cache clear KEY`, or mark fewer sizes dynamic",
}

STOPPING = wire.Rejected("stopping", "The daemon is stopping", "Submit to the next daemon")
CANCELLED = wire.Rejected("cancelled", "The watched files changed again", "")
GIVEN_UP = wire.Rejected("job-cancelled", "A user cancelled the compile", "A later process submits the graph again")


def advise_retry(key: str) -> str:
    """Say what a user can do about a quarantined key."""
    return (
        f"This process runs the graph eager until it ends. `precompiled daemon retry {key[:12]}` ends the quarantine "
        "for later processes"
    )


def make_rejection(event: Submitted, code: str, message: str, action: str) -> Reply:
    return Reply(event.client, wire.Rejected(code, message, action, event.message.id, event.message.key))
