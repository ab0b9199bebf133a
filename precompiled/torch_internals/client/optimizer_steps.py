"""Counts optimizer steps, to detect the end of a recorded run (precompiled/watch/recorder.py).

The hook is public (torch.optim.optimizer.register_optimizer_step_post_hook, since 2.0). If a program compiles its
optimizer's step, Dynamo inlines the hook. The hook must leave nothing in the optimizer's graph. Otherwise watch mode's
graph would differ from the program's.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def count(on_step: Callable[[], None]) -> None:
    """Call ``on_step`` after each eager optimizer step of this process."""

    def after(optimizer: object, args: object, kwargs: object) -> None:
        if torch.compiler.is_compiling():
            return
        on_step()

    register_optimizer_step_post_hook(after)
