"""Defines the entry point ``vllm.general_plugins``: the function that vLLM calls when one of its processes starts.

If the function fails, vLLM compiles its graphs itself.
"""

from __future__ import annotations

import logging

from precompiled import hook
from precompiled.core import interruptions

log = logging.getLogger("precompiled.vllm")


def register() -> None:
    """Make vLLM's piecewise backend compile through precompiled, if the hook is on in this process. Idempotent."""
    try:
        if hook.state() == "on":
            from precompiled.vllm import adaptor

            adaptor.install()
    except Exception as error:  # noqa: BLE001 - a vLLM with other names, or one that cannot be imported
        interruptions.pass_on(error)
        log.warning("vLLM compiles its graphs in process: %s: %s", type(error).__name__, error)
