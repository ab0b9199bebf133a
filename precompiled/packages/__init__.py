"""Packages: Dynamo's own output (guards, bytecode, the keys of its graphs), kept so that a later process skips tracing.

The doors: ``install`` and ``remove`` (what routing.py calls), ``portable.save`` and ``portable.load``
(precompiled.save_package and load_package). ``automatic``: what happens at each frame that Dynamo would trace;
``source_files`` and ``requirements``: what must be the same around it; ``describe``: what a thing is, in words that
hold in another process; ``dynamo``: torch's own part. How all of it works: docs/packages.md,
docs/decisions/0012-packages.md.
"""

from __future__ import annotations


def install() -> None:
    """Use and record packages in this process, as soon as Dynamo is there; idempotent."""
    from precompiled.packages.dynamo import lazy_switch

    lazy_switch.install(_switch_on)


def remove() -> None:
    """Neither use nor record them any more; idempotent."""
    from precompiled.client.process import PROCESS
    from precompiled.packages.dynamo import lazy_switch

    lazy_switch.remove()
    if PROCESS.packages is not None:
        PROCESS.packages.switch_off()


def _switch_on() -> None:
    from precompiled.packages import automatic

    automatic.switch_on()
