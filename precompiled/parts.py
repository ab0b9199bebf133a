"""Lists the parts of precompiled, and loads the modules through which the core calls them.

The core contains all that one host needs: capture, key, store, client, daemon, worker, packages, command line. A *part*
adds a feature, such as the remote. The core runs without any part, so it imports none. It calls a part through an entry
below: a module of the part, and the functions that the core calls. Commands of parts are in ``cli/tree.py``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType

# Part -> its packages and modules. The contract "The core imports no part" in pyproject.toml has the same list.
PARTS = {
    "farm": ("precompiled.farm",),
    "made-up CUDA": ("precompiled.made_up_cuda",),
    "metrics": ("precompiled.metrics",),
    "notebook": ("precompiled.notebook",),
    "pytest plugin": ("precompiled.pytest_plugin",),
    "remote": ("precompiled.remote",),
    "timeline": ("precompiled.timeline",),
    "vLLM": ("precompiled.vllm",),
    "watch": ("precompiled.watch", "precompiled.service.watch"),
}


class PartModule:
    """A module of a part, and the names of the ``functions`` that the core calls. The core imports it when needed."""

    def __init__(self, module: str, *functions: str) -> None:
        self.module, self.functions = module, functions

    def get(self) -> ModuleType | None:
        """Import the module. Returns None if the part is not installed."""
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.module}.".startswith(f"{error.name}."):
                raise  # the part is installed, and a package that it needs is not
            return None

    def require(self) -> ModuleType:
        """As ``get``, but raises ImportError if the part is not installed."""
        found = self.get()
        if found is None:
            raise ImportError(f"{self.module} is not installed: this precompiled lacks an optional part")
        return found


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module of a part is installed. Imports only the packages above the module."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


REMOTE = PartModule("precompiled.remote.part", "begin", "ensure_helper", "put_artifact", "put_entry", "turn")
REMOTE_STATE = PartModule("precompiled.remote.state", "checks", "last_state", "line")
COURIER = PartModule("precompiled.remote.courier", "run_job", "warm_up")
FARM_STATE = PartModule("precompiled.farm.state", "checks", "last_state", "line")
MADE_UP_CUDA = PartModule(
    "precompiled.made_up_cuda.part", "activate", "compiling", "in_a_worker", "is_active", "is_made_up", "stand_in"
)
TARGETS = PartModule("precompiled.made_up_cuda.targets", "available", "option", "variables", "warning")
NOTEBOOK = PartModule("precompiled.notebook", "load", "unload")
WATCH = PartModule("precompiled.watch.part", "any_registered", "record", "show_watches")
