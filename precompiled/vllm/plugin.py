"""What vLLM calls when it starts: the entry point ``vllm.general_plugins``, in each of its processes.

Nothing that goes wrong here reaches vLLM, which goes on as without us.
"""

from __future__ import annotations

import logging

from precompiled import hook

log = logging.getLogger("precompiled.vllm")


def register() -> None:
    """Have vLLM's piecewise backend compile through us, where the hook is on in this process; idempotent."""
    try:
        if hook.state() == "on":
            from precompiled.vllm import adaptor

            adaptor.install()
    except Exception as error:  # noqa: BLE001 - a vLLM that has other names, or cannot be imported whole
        log.warning("vLLM compiles its graphs in process: %s: %s", type(error).__name__, error)
