"""Lists this host's GPUs, and pins a worker to one of them.

A client names a GPU by UUID, because ``CUDA_VISIBLE_DEVICES`` changes what an index means. The list comes from
nvidia-smi, so that the daemon loads neither torch nor a CUDA library.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass

from precompiled import parts

QUERY_TIMEOUT_S = 30.0  # without persistence mode the driver initialises every GPU first, which takes seconds


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str  # "GPU-..." as the driver writes it
    name: str


class DeviceError(ValueError):
    """No worker can be pinned to this device; the message says why."""


def parse_inventory(text: str) -> list[Gpu]:
    """Parse nvidia-smi's output, one ``index, uuid, name`` per line; other lines are ignored."""
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 3 or not parts[0].isdigit():
            continue
        gpus.append(Gpu(int(parts[0]), parts[1], parts[2]))
    return gpus


def query_inventory() -> list[Gpu] | None:
    """The host's GPUs; None if nvidia-smi fails or is missing (some containers have only the driver)."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=index,uuid,name", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=QUERY_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_inventory(done.stdout.decode(errors="replace")) if done.returncode == 0 else None


class Devices:
    """The list of GPUs, queried once in the background: nvidia-smi may take seconds, and the main loop never waits."""

    def __init__(self, query: Callable[[], list[Gpu] | None] = query_inventory) -> None:
        self._query = query
        self._gpus: list[Gpu] | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._fill, name="devices", daemon=True)
            self._thread.start()

    def _fill(self) -> None:
        self._gpus = self._query()

    def gpus(self) -> list[Gpu] | None:
        """The GPUs; None if nvidia-smi has not answered yet or has failed."""
        return self._gpus

    def visible(self, device: str) -> str:
        """The ``CUDA_VISIBLE_DEVICES`` for a worker of ``device``. Raises DeviceError if no worker can use the device.

        Until the list is known, any well-formed UUID is accepted: in the worker, the driver refuses a UUID that does
        not exist.
        """
        if device == "cpu":
            return ""
        kind, _, uuid = device.partition(":")
        if kind != "cuda" or not uuid or not all(letter.isalnum() or letter in "-/" for letter in uuid):
            raise DeviceError(f'the device {device[:100]!r} is neither "cpu" nor "cuda:<GPU UUID>"')
        if uuid.startswith("MIG-"):
            return uuid  # a MIG slice, which the list does not contain
        if not uuid.startswith("GPU-"):
            uuid = "GPU-" + uuid  # torch leaves the prefix out
        made_up = parts.MADE_UP_CUDA.get()
        if made_up is not None and made_up.is_made_up(uuid):
            # a made-up GPU (docs/guides/targets.md): the worker sees no GPU unless its variables define the made-up one
            return uuid
        self.begin()
        known = self._gpus
        if known is not None and uuid not in {gpu.uuid for gpu in known}:
            have = ", ".join(f"{gpu.uuid} ({gpu.name})" for gpu in known) or "none"
            raise DeviceError(f"this host has no GPU {uuid}; its GPUs: {have}")
        return uuid
