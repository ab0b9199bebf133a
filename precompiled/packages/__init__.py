"""Keeps Dynamo's guards, bytecode and graph keys on disk as packages, so that later processes skip tracing.

Entry points:

- ``install`` and ``remove``: called by routing.py.
- ``portable.save`` and ``portable.load``: called by precompiled.save_package and precompiled.load_package.

Parts:

- ``automatic``: handles each frame that Dynamo would trace.
- ``failed_traces``: reports the traces that torch does not finish, if packages are off.
- ``entry_search`` and ``entry_building``: find the entry that serves a frame, and build the entry of a trace.
- ``source_files`` and ``requirements``: check all conditions for the use of an entry, except its guards.
- ``describe``: describes objects as plain data that two processes can compare.
- ``dynamo``: has all code that needs Dynamo.

How packages work: docs/explanation/packages.md, docs/decisions/0012-packages.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from precompiled.core import interruptions

log = logging.getLogger("precompiled.package")

_undo: list[Callable[[], None]] = []  # what `_report_failed_traces` must undo


def install(*, off: bool = False) -> None:
    """Use and record packages in this process, from now on if Dynamo is imported, else from the first torch.compile on.

    Idempotent.

    ``off``: do neither, and only report the traces that torch does not finish.
    """
    from precompiled.packages.dynamo import lazy_switch

    lazy_switch.install(_report_failed_traces if off else _switch_on)


def remove() -> None:
    """Stop using and recording packages. Idempotent."""
    from precompiled.client.process import PROCESS
    from precompiled.packages.dynamo import lazy_switch

    lazy_switch.remove()
    if PROCESS.packages is not None:
        PROCESS.packages.switch_off()
    while _undo:
        _undo.pop()()


def _switch_on() -> None:
    from precompiled.packages import automatic

    automatic.switch_on()


def _report_failed_traces() -> None:
    try:
        from precompiled.packages import failed_traces

        failed_traces.switch_on()
        _undo.append(failed_traces.switch_off)
    except Exception as error:  # noqa: BLE001 - if this torch lacks a private name, `explain` only names no error
        interruptions.pass_on(error)
        log.info("errors of traces are not reported: %s: %s", type(error).__name__, error)
