"""Defines the report of a frame: whether a package served the frame, or why not."""

from __future__ import annotations

from dataclasses import dataclass

from precompiled.packages.dynamo.frame_entry import Frame
from precompiled.store import package_format as fmt


@dataclass
class FunctionReport:
    """What happened when Dynamo had no code for a frame.

    ``state`` is one of:

    - "used": a package served the frame, without a trace.
    - "skipped": the frame runs uncompiled, without a trace, because a package says that Dynamo skipped it.
    - "recorded": Dynamo traced the frame, and a package was written.
    - "traced": Dynamo traced the frame, and no package was written. ``reason`` has the code, ``message`` explains it.
    - "audited": a package fits, but Dynamo traced the frame to check the package. Trace and package agree.

    ``reasons`` says, for each entry of the function, why the entry was not used.
    """

    name: str  # module.qualified name; for a module of torch's own (nn.Sequential), the name of its class
    state: str
    reason: str = ""
    message: str = ""
    reasons: tuple[str, ...] = ()
    guards: int = 0
    find_s: float = 0.0


def shown_name(frame: Frame) -> str:
    """The frame's name for reports. For a module of torch's own (nn.Sequential), the name of its class."""
    wrapped = type(frame.local.get("fn"))
    if frame.module == fmt.WRAPPER:
        return f"{wrapped.__module__}.{wrapped.__qualname__}"
    return f"{frame.module}.{frame.qualname}"
