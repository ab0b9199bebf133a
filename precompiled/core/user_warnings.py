"""Warns the user of a program, through Python's warnings."""

from __future__ import annotations

import warnings


def warn(text: str) -> None:
    """Warn. Raises the warning if the user's filters say so (`-W error`).

    Python prints ``precompiled:0: RuntimeWarning: text``. The warning names no source line, because most warnings come
    from a thread without user frames. Filters can match the module "precompiled".
    """
    warnings.warn_explicit(text, RuntimeWarning, "precompiled", 0)
