"""The variables that a worker is launched with, by the daemon (service/worker_process.py) or a farm (farm/node.py)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from precompiled.core import paths

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a process needs to find its home and its files; everything a compile depends on comes from the client.
INHERITED = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "XDG_CACHE_HOME",
             "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "PATH")  # fmt: skip
# Never from a client: who launches the worker pins its device, and the hook stays off in workers.
OWN = ("CUDA_VISIBLE_DEVICES", "PRECOMPILED", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def variables(here: Mapping[str, str], given: Mapping[str, str], visible: str) -> dict[str, str]:
    """``here``: those of who launches it, of which it gets a few; ``given``: the client's. ``visible``: what it sees of
    the GPUs.
    """
    found = {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8"}
    found.update({name: here[name] for name in INHERITED if name in here})
    found.update(usable(given))
    if not os.path.isabs(found.get("HOME", "")):  # libraries would create `~` in the working directory
        found["HOME"] = str(paths.home() or "/")
    found.update(CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER="PCI_BUS_ID", PRECOMPILED="0")
    return found


def usable(variables: Mapping[str, str]) -> dict[str, str]:
    """A client's variables, without those that exec refuses and those that are not the client's to set."""
    return {
        name: value
        for name, value in variables.items()
        if name and "=" not in name and "\0" not in name and "\0" not in value and name not in OWN
    }
