"""Packages: Dynamo's own output (guards, bytecode, the keys of its graphs), kept so that a later process skips tracing.

Called from outside: ``install`` and ``remove`` (by routing.py), ``portable.save`` and ``portable.load`` (by
precompiled.save_package and load_package). ``automatic``: what happens at each frame that Dynamo would trace;
``source_files`` and ``requirements``: what must be the same around a frame; ``describe``: objects as data that means
the same in another process; ``dynamo``: all that needs Dynamo. How packages work: docs/explanation/packages.md,
docs/decisions/0012-packages.md.
"""

from __future__ import annotations


def install() -> None:
    """Use and record packages in this process, as soon as Dynamo is imported; idempotent."""
    from precompiled.packages.dynamo import lazy_switch

    lazy_switch.install(_switch_on)


def remove() -> None:
    """Stop using and recording packages; idempotent."""
    from precompiled.client.process import PROCESS
    from precompiled.packages.dynamo import lazy_switch

    lazy_switch.remove()
    if PROCESS.packages is not None:
        PROCESS.packages.switch_off()


def _switch_on() -> None:
    from precompiled.packages import automatic

    automatic.switch_on()
