"""Defines the log of what Dynamo reads while it traces a frame.

trace_patches.py and the files whose wrappers it installs fill the log. unguarded.py describes the logged values.

Private names: torch._dynamo.source.ConstantSource, torch._guards.Source. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo.source import ConstantSource
from torch._guards import Source

from precompiled.core import interruptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo.native_calls import NativeCalls

# Arguments and keywords of a call of ``_init_group``. Each is ("group", index), ("list", None) for an empty list, or
# ("value", constant).
Call = tuple[list[tuple[str, Any]], dict[str, tuple[str, Any]]]
# Module, qualified name, arguments, keywords, described result.
Asked = tuple[str, str, tuple[Any, ...], dict[str, Any], Any]


@dataclass
class TraceLog:
    """The reads of all attempts to trace one frame."""

    values: list[Source] = field(default_factory=list)
    attributes: list[tuple[Source, str]] = field(default_factory=list)  # source of an object, name
    keys: list[tuple[Source, Any]] = field(default_factory=list)  # source of a dictionary, key
    # Source of an object that the trace read as a whole, and how: "str", "dir", "keys", "order", "state" or HAS.
    wholes: list[tuple[Source, str]] = field(default_factory=list)
    # maps an object's id to the object and its sources
    met: dict[int, tuple[object, dict[str, object]]] = field(default_factory=dict)
    # maps ids to the values that became variables without a source
    made: dict[int, Any] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    # maps the name of an optimizer's source to the calls of its ``_init_group``
    initialised: dict[str, list[Call]] = field(default_factory=dict)
    native: NativeCalls = field(default_factory=NativeCalls)
    in_any_order: int = 0  # depth of nested functions that do not depend on a set's order (ordered.py)
    # Maps the id of a set variable's ``items`` to the ``items`` and to a list of the items in order (set_order.py).
    in_order: dict[int, tuple[object, list[object]]] = field(default_factory=dict)
    problem: NotPortable | None = None

    def read(self, source: Source | None) -> None:
        """Record that a value was read.

        Ignores a ConstantSource, which names the result of a function under assume_constant_result. A later process
        calls this function again, and compares the results.
        """
        if source is not None and not isinstance(source, ConstantSource):
            self.values.append(source)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """If the code in this block raises an error, the trace continues, but its entry is not kept."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - Dynamo's and the user's objects may raise anything
            interruptions.pass_on(error)
            self.problem = NotPortable(f"{type(error).__name__} at a note of ours", code="package-internal-error")
