"""Lists the parts of precompiled, and loads the modules through which the core calls them.

The core contains all that one host needs: capture, key, store, client, daemon, worker, packages, command line. A *part*
adds a feature, such as the remote. The core runs without any part, so it imports no part directly. The core calls a
part through a ``PartModule`` below. Commands of parts are in ``cli/tree.py``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from precompiled import wire
    from precompiled.core.check import Check
    from precompiled.core.config import Settings

# Maps a part to its packages and modules. The contract "The core imports no part" in pyproject.toml has the same list.
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

_Interface = TypeVar("_Interface")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class PartModule(Generic[_Interface]):
    """A part's module that implements a protocol. The core imports the module when it needs the part."""

    def __init__(self, module: str) -> None:
        self.module = module

    def get(self) -> _Interface | None:
        """Import the module. Returns None if the part is not installed."""
        try:
            return cast(_Interface, importlib.import_module(self.module))
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.module}.".startswith(f"{error.name}."):
                raise  # the part is installed, but lacks a package that it needs
            return None

    def require(self) -> _Interface:
        """Like ``get``, but raises ImportError if the part is not installed."""
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


# ---------------------------------------------------------------- what the core calls


class TurnProtocol(Protocol):
    """Tells a worker which host of the fleet compiles a key."""

    found: bool  # the artifact is in the store by now
    again_s: float  # if not 0, another host compiles the key; ask again after this many seconds

    def published(self, slot: int) -> None:
        """Report that this host has published the artifact."""

    def failed(self) -> None:
        """Report that the graph cannot be compiled on any host."""


class AheadProtocol(Protocol):
    """remote/ahead.Ahead waits for the objects that the remote's helper fetches for this process."""

    @property
    def under_way(self) -> bool:
        """Whether the helper may still fetch something."""

    def wait(self) -> bool:
        """Wait for the objects, up to the process's total limit. Returns whether any have arrived."""

    def used(
        self,
        keys: Collection[str],
        fresh: Collection[str],
        entries: Collection[tuple[str, str]],
        kernels: Collection[str],
    ) -> None:
        """Report the artifacts (``keys``), entries of packages and Triton kernels that this process used. ``fresh``:
        the artifacts that the store lacked at first.
        """

    def on_problem(self, callback: Callable[[Exception], None]) -> None:
        """Call ``callback`` once, with the error, if the remote cannot be used or the helper's start failed."""


class RemoteProtocol(Protocol):
    """Shares artifacts between hosts, and starts the helper of a remote or a farm."""

    def turn(self, root: Path, key: str) -> AbstractContextManager[TurnProtocol]:
        """Ask which host compiles a key."""

    def put_artifact(self, root: Path, key: str, slot: int) -> None:
        """Let the helper copy an artifact of the store at ``root`` to the remote."""

    def put_entry(self, root: Path, function: str, name: str) -> None:
        """Let the helper copy an entry of a package to the remote."""

    def put_kernel(self, root: Path, key: str) -> None:
        """Let the helper copy a Triton kernel to the remote."""

    def fetch_kernel(self, root: Path, key: str, wait_s: float, *, compiles: bool) -> bool:
        """Let the helper fetch a Triton kernel. Returns whether the kernel is in the store.

        Returns false if the helper does not answer for ``wait_s`` seconds. ``compiles``: whether this process will
        compile the kernel if the remote lacks it. If this process will compile, and another host already compiles the
        kernel, the helper waits for that host.
        """

    def withdraw(self, root: Path, key: str, label: str) -> None:
        """Let the helper remove a refused variant of an artifact from the remote."""

    def begin(self, settings: Settings) -> AheadProtocol | None:
        """Start the helper, which fetches what this program used in earlier runs. Idempotent."""

    def stop_helper(self, settings: Settings) -> int | None:
        """Let the helper finish its uploads and exit. Returns its pid, or None if no helper runs."""

    def ensure_helper(self, settings: Settings) -> None:
        """Start the helper unless one runs. Raises OSError if the start fails."""


class CourierProtocol(Protocol):
    """Offers jobs to a farm, in a worker's process."""

    def warm_up(self) -> None:
        """Import the modules that every job needs."""

    def run_job(self, job: wire.Job) -> wire.Finished:
        """Offer one job."""


class StateProtocol(Protocol):
    """The state of the remote or of the farm, for `status`, `cache stats` and `doctor`."""

    def last_state(self, settings: Settings) -> dict[str, Any] | None:
        """The last recorded state; None if the feature is not set up."""

    def line(self, state: dict[str, Any]) -> str:
        """A state in one line of text."""

    def checks(self, settings: Settings) -> Iterator[Check]:
        """Checks of `precompiled doctor`."""


class MadeUpCudaProtocol(Protocol):
    """A CUDA device for a host without a GPU."""

    def activate(self) -> None:
        """Load the device before torch if CUDA_MADE_UP names one. Ends the process if that fails."""

    def in_a_worker(self) -> None:
        """Like ``activate``, in a process that compiles for the device and runs no kernel on it."""

    def is_active(self) -> bool:
        """Whether this process's CUDA devices are simulated."""

    def compiling(self) -> AbstractContextManager[Callable[[], str]]:
        """Inside the block, refuse to measure times and to run kernels.

        Yields a function that returns what was refused.
        """

    def is_made_up(self, uuid: str) -> bool:
        """Whether the UUID is that of a made-up device."""

    def stand_in(self, properties: Callable[[], object]) -> tuple[str, str]:
        """Build a device with the properties that ``properties`` returns. Returns CUDA_MADE_UP's value and the UUID.

        Raises PrecompiledError if the device cannot be built.
        """


class KindProtocol(Protocol):
    """A kind of GPU: its short name, and the driver's name for it."""

    @property
    def code(self) -> str: ...

    @property
    def name(self) -> str: ...


class WantedDevicesProtocol(Protocol):
    """The value of the option --target."""

    @property
    def kind(self) -> KindProtocol: ...


class TargetsProtocol(Protocol):
    """The option --target: run a command on a made-up GPU."""

    def option(self, function: _Function) -> _Function:
        """Decorator: give a command the option, which sets its argument ``target``."""

    def warning(self, target: WantedDevicesProtocol) -> str:
        """The warning to print before the command runs."""

    def variables(self, target: WantedDevicesProtocol, cmd: Sequence[str], caches: Path) -> dict[str, str]:
        """The command's environment variables. ``caches``: the folder for its caches. Raises PrecompiledError."""

    def available(self) -> tuple[str, str]:
        """For `precompiled doctor`: which GPUs this interpreter can simulate; if none, also what to do."""


class NotebookProtocol(Protocol):
    """The extension of IPython."""

    def load(self, shell: Any) -> None:
        """Load the extension into IPython's ``shell``."""

    def unload(self, shell: Any) -> None:
        """Unload the extension."""


class WatchProtocol(Protocol):
    """Compiles graphs when a source file is saved."""

    def record(self) -> None:
        """Begin to report this process's graphs, if watch mode started the process to capture them."""

    def any_registered(self, cache_dir: Path) -> bool:
        """Whether a watch is registered in this store."""

    def show_watches(self, watches: list[dict[str, Any]]) -> None:
        """Print the watches of the daemon, for `status`."""


REMOTE: PartModule[RemoteProtocol] = PartModule("precompiled.remote.part")
REMOTE_STATE: PartModule[StateProtocol] = PartModule("precompiled.remote.state")
COURIER: PartModule[CourierProtocol] = PartModule("precompiled.remote.courier")
FARM_STATE: PartModule[StateProtocol] = PartModule("precompiled.farm.state")
MADE_UP_CUDA: PartModule[MadeUpCudaProtocol] = PartModule("precompiled.made_up_cuda.part")
TARGETS: PartModule[TargetsProtocol] = PartModule("precompiled.made_up_cuda.targets")
NOTEBOOK: PartModule[NotebookProtocol] = PartModule("precompiled.notebook")
WATCH: PartModule[WatchProtocol] = PartModule("precompiled.watch.part")
