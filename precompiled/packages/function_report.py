"""Defines the report of one frame: whether a package served it, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass

from precompiled.packages.dynamo.frame_entry import Frame
from precompiled.store import package_format as fmt


@dataclass
class FunctionReport:
    """The outcome for one frame for which Dynamo had no code.

    ``state`` is one of:

    - "used": served from a package.
    - "skipped": a package says that Dynamo leaves the frame uncompiled.
    - "recorded": traced, and written to a package.
    - "traced": traced, and not written to a package. ``reason`` has the code, ``message`` the explanation.
    - "audited": traced, to check a package; the results are equal (packages/audit.py).

    ``reasons`` says why each entry of the function was not used.
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
