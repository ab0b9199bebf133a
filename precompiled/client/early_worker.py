"""Requests a worker before the first graph, while the store is empty (docs/decisions/0016).

A worker needs seconds to import torch. So a process requests a worker twice: when the process itself has imported
torch, and when Dynamo begins the first trace (daemon_starter.py).
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from precompiled.client.daemon_link import daemon_reachable
from precompiled.core import interruptions
from precompiled.store.artifacts import Store

if TYPE_CHECKING:
    from precompiled import wire
    from precompiled.core.config import Settings

log = logging.getLogger("precompiled.route")

GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")  # the device files of NVIDIA's and AMD's drivers


def message(settings: Settings, device: str, *, tracing: bool) -> wire.Expect:
    """Return the message that requests a worker for ``device``, as this process calls the device.

    Raises PrecompiledError if no worker can serve the device.
    """
    from precompiled import wire
    from precompiled.graph import environment

    interpreter, of_worker = environment.worker_for(device, without_gpu=settings.compile_without_gpu)
    return wire.Expect(interpreter, of_worker, str(settings.cache_dir), tracing)


def request_at_import(settings: Settings) -> None:
    """Request a worker from the daemon, if one runs, now that torch is imported. Raises no error.

    A worker serves one device, and the program's device is unknown before its first trace. So nothing is requested on a
    host with a GPU.
    """
    if settings.mode not in ("eager", "wait") or "CUDA_MADE_UP" in os.environ or any(map(os.path.exists, GPU_DRIVERS)):
        return
    try:
        if not daemon_reachable(settings) or not Store(settings.cache_dir, settings.base).is_empty():
            return
        from precompiled.client.ask import send_now

        # The daemon may be slow, so a thread sends the message. The thread imports nothing (core/forking.py).
        messages = [message(settings, "cpu", tracing=False)]
        threading.Thread(target=send_now, args=(settings, messages), name="precompiled-request", daemon=True).start()
    except Exception as error:  # noqa: BLE001 - the first trace requests a worker, too
        interruptions.pass_on(error)
        log.info("no worker was requested when torch was imported: %s", error)
