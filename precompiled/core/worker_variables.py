"""Selects the environment variables of a worker. The daemon (service/worker_process.py) and a farm (farm/node.py) start
workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from precompiled.core import paths

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The variables that a worker inherits, because a process needs them to find its home and files. All variables that
# affect a compile come from the client instead.
INHERITED = tuple(
    "HOME LANG LC_ALL LC_CTYPE LOGNAME PATH TMPDIR TZ USER XDG_CACHE_HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR".split()
)
# Variables that a client must not set. The process that starts a worker chooses the worker's device, and keeps the hook
# off in it.
OWN = ("CUDA_VISIBLE_DEVICES", "PRECOMPILED", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def variables(here: Mapping[str, str], given: Mapping[str, str], visible: str) -> dict[str, str]:
    """Return the variables of a worker.

    - ``here``: the variables of the process that starts the worker. Empty if the worker runs as another user, because
      the launcher then sets HOME from this user's account (service/launcher.py).
    - ``given``: the client's variables
    - ``visible``: the value of CUDA_VISIBLE_DEVICES
    """
    found = {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8"}
    found.update({name: here[name] for name in INHERITED if name in here})
    found.update(usable(given))
    # Without HOME, libraries would create a directory `~` in the working directory.
    if not os.path.isabs(found.get("HOME", "")):
        found.pop("HOME", None)
        if here:
            found["HOME"] = str(paths.home() or "/")
    found.update(CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER="PCI_BUS_ID", PRECOMPILED="0")
    return found


def usable(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the client's variables, except those that exec refuses or that a client must not set."""
    return {
        name: value
        for name, value in variables.items()
        if name and "=" not in name and "\0" not in name and "\0" not in value and name not in OWN
    }
