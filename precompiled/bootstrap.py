"""Site-time code: waits for `torch`, then hands over to `precompiled.routing`.

Runs in every Python process of a host where the hook is on, most of which never import torch. So: nothing is imported
here but `os`, `sys`, the built-in `_thread` and `time`, and what our package imports anyway; no file is read, and no
error of ours is ever raised (but where a GPU is to be made up and cannot be, the process is ended)::

    install()        a finder at the front of sys.meta_path
    import torch     the finder asks the real finders, and shadows `exec_module` on the one loader they return
    ... executed     the shadow and the finder are removed; precompiled.routing.on_torch_imported() runs

The loader keeps its type and identity: `inspect`, `importlib.resources` and others find `torch.__spec__.loader` as it
would be without us.
"""

import _thread
import os
import sys
import time

from precompiled.version import switched_off

# Why the hook is not working in this process, for `precompiled doctor`.
problem: str | None = None

# When torch's import began, in seconds since the epoch; 0: not seen.
torch_began = 0.0

_state = "off"  # off | waiting | fired
# Holds the finder that waits for torch; only the thread that pops it fires.
_waiting: list = []


def install() -> None:
    """Route torch.compile to us, now or as soon as torch is imported. Idempotent: a .pth line may run twice."""
    global _state  # noqa: PLW0603
    if switched_off(os.environ):
        return
    if _state != "off":
        return
    if "CUDA_MADE_UP" in os.environ:
        _make_up_devices()
    if "PRECOMPILED_CAPTURE" in os.environ:
        _record()
    if _torch_is_whole():
        _state = "fired"
        _route()
        return
    finder = _TorchFinder()
    _waiting.append(finder)
    _state = "waiting"
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]


def remove() -> None:
    """Stop waiting for torch. What `routing` has already done is not undone here."""
    global _state  # noqa: PLW0603
    _claim()
    _state = "off"


def state() -> str:
    """`off` (not installed), `waiting` (for torch), `fired` (torch was there, the hook was called) or `failed`."""
    return "failed" if problem is not None else _state


def note(what: str, error: BaseException) -> None:
    """Keep why a part of ours failed; with PRECOMPILED_LOG=debug it is printed at once, too."""
    global problem  # noqa: PLW0603
    problem = f"{what}: {type(error).__name__}: {error}"
    if os.environ.get("PRECOMPILED_LOG", "").lower() == "debug" and sys.stderr is not None:
        sys.stderr.write(f"precompiled: {problem}\n")


class _TorchFinder:
    """Finds nothing itself: it learns from the real finders how torch will be loaded."""

    def __init__(self) -> None:
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name == "torch":
            return self._torch_spec(name, path, target)
        # Torch came by a way we did not see (a finder put before ours, a loader that cannot be shadowed). Its lazy
        # imports still pass here, and torch.compile makes some before it chooses a backend.
        if name.startswith("torch.") and _torch_is_whole():
            _fire()
        return None

    def _torch_spec(self, name: str, path: object, target: object) -> object:
        global torch_began  # noqa: PLW0603
        # Other import hooks ask all finders as well: asked by one of them, this finder finds nothing. Per thread, since
        # another thread's importlib.util.find_spec("torch") must not hide the real import from us.
        thread = _thread.get_ident()
        if thread in self._asking:
            return None
        self._asking.add(thread)
        torch_began = time.time()
        try:
            for finder in list(sys.meta_path):
                find_spec = getattr(finder, "find_spec", None)
                if finder is self or find_spec is None:
                    continue
                spec = find_spec(name, path, target)
                if spec is not None:
                    _shadow(spec.loader)
                    return spec
            return None
        finally:
            self._asking.discard(thread)


def _shadow(loader: object) -> None:
    """Have `_fire` called after `loader` has executed torch, and leave the loader as it was."""
    real = getattr(loader, "exec_module", None)
    attributes = getattr(loader, "__dict__", None)
    if real is None or not isinstance(attributes, dict) or "exec_module" in attributes:
        return  # a class, without attributes of its own, or shadowed already: `find_spec` sees torch's lazy imports

    def exec_module(module: object) -> None:
        if getattr(module, "__name__", "") == "torch":
            _begin_ahead()
        try:
            real(module)
        finally:
            # Also when torch failed to import: the finder stays, and shadows the loader of the next attempt.
            if attributes.get("exec_module") is exec_module:
                del attributes["exec_module"]
        if getattr(module, "__name__", "") == "torch":
            _fire()

    attributes["exec_module"] = exec_module


def _torch_is_whole() -> bool:
    """Whether torch is imported, its module executed to the last line."""
    module = sys.modules.get("torch")
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _claim() -> bool:
    """Remove the waiting finder; true for the one caller that removed it."""
    try:
        finder = _waiting.pop()
    except IndexError:
        return False
    try:
        sys.meta_path.remove(finder)
    except ValueError:
        pass  # somebody rebuilt sys.meta_path without us
    return True


def _fire() -> None:
    global _state  # noqa: PLW0603
    if _claim():
        _state = "fired"
        _route()


def _make_up_devices() -> None:
    """For a process of `--target` (docs/guides/targets.md). Ends the process if it cannot have a made-up GPU."""
    from precompiled.made_up_cuda import activate

    activate.activate()


def _record() -> None:
    """For a process that is a watch's capture (docs/guides/watch.md): note what it imports from here on."""
    try:
        from precompiled.client import recorder

        recorder.begin()
    except Exception as error:  # noqa: BLE001 - the run goes on, and the watch says that nothing was captured
        note("this capture is not recorded", error)


def _begin_ahead() -> None:
    """Where a remote is set, have its helper bring what this program used last while torch is imported."""
    try:
        from precompiled.client.process import PROCESS

        settings = PROCESS.settings()
        if settings.has_helper:
            from precompiled.client import ahead

            ahead.begin(settings)
    except Exception:  # noqa: BLE001, S110 - `_route` begins it as well, and keeps why it cannot
        pass


def _route() -> None:
    try:
        from precompiled import routing
        from precompiled.client.process import PROCESS

        PROCESS.torch_imported = (torch_began, time.time() if torch_began else 0.0)
        routing.on_torch_imported()
    except Exception as error:  # noqa: BLE001 - no failure of ours may reach somebody's `import torch`
        note("torch.compile is not routed", error)
