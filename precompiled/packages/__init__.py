"""Keeps Dynamo's guards, bytecode and graph keys on disk as packages, so that later processes skip tracing.

Entry points:

- ``install`` and ``remove``: called by routing.py.
- ``portable.save`` and ``portable.load``: called by precompiled.save_package and precompiled.load_package.

Parts:

- ``automatic``: handles each frame that Dynamo would trace.
- ``entry_search`` and ``entry_building``: find the entry that serves a frame, and build the entry of a trace.
- ``source_files`` and ``requirements``: check the conditions besides guards under which an entry may be used.
- ``describe``: describes objects as plain data that two processes can compare.
- ``dynamo``: has all code that needs Dynamo.

How packages work: docs/explanation/packages.md, docs/decisions/0012-packages.md.
"""

from __future__ import annotations


def install() -> None:
    """Use and record packages in this process as soon as Dynamo is imported. Idempotent."""
    from precompiled.packages.dynamo import lazy_switch

    lazy_switch.install(_switch_on)


def remove() -> None:
    """Stop using and recording packages. Idempotent."""
    from precompiled.client.process import PROCESS
    from precompiled.packages.dynamo import lazy_switch

    lazy_switch.remove()
    if PROCESS.packages is not None:
        PROCESS.packages.switch_off()


def _switch_on() -> None:
    from precompiled.packages import automatic

    automatic.switch_on()
