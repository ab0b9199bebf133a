"""Requests a worker before the first graph, while the store is empty (docs/decisions/0016).

A worker needs seconds to import torch. So a process requests a worker twice: when the process itself has imported
torch, and when Dynamo begins the first trace (daemon_starter.py). A session and its connection begin with the trace, so
the first request uses a connection of its own.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from precompiled.core import forking, interruptions

if TYPE_CHECKING:
    from precompiled import wire
    from precompiled.core.config import Settings

log = logging.getLogger("precompiled.route")

# The device files of GPUs: NVIDIA's driver, Jetson's, that of Windows' Linux subsystem, AMD's, and Intel's.
GPU_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd", "/dev/dri")


def message(settings: Settings, device: str, *, tracing: bool) -> wire.Expect:
    """Return the message that requests a worker for ``device``, as this process calls the device.

    Raises PrecompiledError if no worker can serve the device.
    """
    from precompiled import wire
    from precompiled.graph import environment

    interpreter, of_worker = environment.worker_for(device, without_gpu=settings.compile_without_gpu)
    return wire.Expect(interpreter, of_worker, str(settings.cache_dir), tracing)


def request(settings: Settings) -> None:
    """Request a worker from the daemon, if one runs, now that torch is imported. Raises no error.

    Nothing is requested if a remote may have the program's graphs, or if the program may use a GPU: a worker serves one
    device, and the program's device is unknown before its first trace.
    """
    if settings.mode not in ("eager", "wait") or settings.has_helper:
        return
    try:
        from precompiled.client.daemon_link import daemon_reachable, import_messages
        from precompiled.store.artifacts import Store

        if not daemon_reachable(settings) or _may_use_gpu() or not Store(settings.cache_dir, settings.base).is_empty():
            return
        import_messages()
        expected = message(settings, "cpu", tracing=False)
        # The daemon may be slow, so a thread sends the message.
        threading.Thread(target=_send, args=(settings, expected), name="precompiled-request", daemon=True).start()
    except Exception as error:  # noqa: BLE001 - the first trace requests a worker, too
        interruptions.pass_on(error)
        log.info("no worker was requested when torch was imported: %s", error)


def _send(settings: Settings, expected: wire.Expect) -> None:
    from precompiled.client.ask import send_now

    with forking.held():  # otherwise, a fork's child would keep the connection
        send_now(settings, [expected])


def _may_use_gpu() -> bool:
    torch = sys.modules["torch"]
    built = torch.version.cuda or torch.version.hip or getattr(torch.version, "xpu", None)
    return "CUDA_MADE_UP" in os.environ or (built is not None and any(map(os.path.exists, GPU_FILES)))
