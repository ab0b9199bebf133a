"""Runs at the start of a Python process: waits for `torch`, then starts `precompiled.routing`.

The file runs in every Python process of a host with the hook on, and most of these processes never import torch. So
this file imports only `os`, `sys`, the built-in `_thread` and `time`, and what the package imports anyway. This file
opens no file (except for `precompiled timeline`) and raises no error. There is one exception: if the GPU of `--target`
cannot be simulated, the process ends. Steps::

    install()        a finder at the front of sys.meta_path
    import torch     the finder asks the real finders, and shadows `exec_module` on the one loader they return
    ... executed     the shadow and the finder are removed; precompiled.routing.on_torch_imported() runs

The loader keeps its type and identity, so `torch.__spec__.loader` does not change for `inspect`, for example.
"""

import _thread
import os
import sys
import time

from precompiled.version import switched_off

# Why the hook does not work in this process, for `precompiled doctor`.
problem: str | None = None

# When torch's import began, in seconds since the epoch. 0 if this file did not see the import.
torch_began = 0.0

# If Python is still starting: the clocks CLOCK_REALTIME_COARSE and CLOCK_BOOTTIME, and the modules loaded so far.
# core/files.py compares the files of modules that are loaded later with these times.
at_start: tuple[float, float, dict[str, object]] | None = None

_COARSE = 5  # CLOCK_REALTIME_COARSE (linux/time.h), by which Linux stamps files. The module `time` does not name it.

_state = "off"  # off | waiting | fired
# Contains the finder that waits for torch. Only the thread that pops the finder routes torch.compile.
_waiting: list = []


def install() -> None:
    """Route torch.compile now, or when torch is imported. Idempotent: a .pth line may run twice."""
    global _state  # noqa: PLW0603
    if switched_off(os.environ):
        return
    if _state != "off":
        return
    _note_start()
    if "CUDA_MADE_UP" in os.environ:
        _make_up_devices()
    if "PRECOMPILED_CAPTURE" in os.environ:
        _record()
    if "PRECOMPILED_TIMELINE" in os.environ:
        _mark()
    if _torch_is_whole():
        _state = "fired"
        _route()
        return
    finder = _TorchFinder()
    _waiting.append(finder)
    _state = "waiting"
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]


def remove() -> None:
    """Stop waiting for torch. This does not undo `routing`."""
    global _state  # noqa: PLW0603
    _claim()
    _state = "off"


def state() -> str:
    """The hook's state: `off` (not installed), `waiting` (for torch), `fired` (routing ran) or `failed`."""
    return "failed" if problem is not None else _state


def note(what: str, error: BaseException) -> None:
    """Record why a part of the hook failed. With PRECOMPILED_LOG=debug, also print the reason."""
    global problem  # noqa: PLW0603
    problem = f"{what}: {type(error).__name__}: {error}"
    if os.environ.get("PRECOMPILED_LOG", "").lower() == "debug" and sys.stderr is not None:
        sys.stderr.write(f"precompiled: {problem}\n")


class _TorchFinder:
    """A meta-path finder that calls the real finders to learn how torch will be loaded, and finds nothing itself."""

    def __init__(self) -> None:
        self._asking: set[int] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name == "torch":
            return self._torch_spec(name, path, target)
        # This finder misses the import of torch if another finder comes first, or if torch's loader cannot be shadowed.
        # It still sees torch's lazy imports, and torch.compile imports modules lazily before it chooses a backend.
        if name.startswith("torch.") and _torch_is_whole():
            _fire()
        return None

    def _torch_spec(self, name: str, path: object, target: object) -> object:
        global torch_began  # noqa: PLW0603
        # Other import hooks call all finders too, and must get None from this finder. The query is recorded per thread,
        # because another thread's importlib.util.find_spec("torch") must not hide the real import.
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
    """Make `loader` call `_fire` once it has executed torch. Then restore the loader."""
    real = getattr(loader, "exec_module", None)
    attributes = getattr(loader, "__dict__", None)
    if real is None or not isinstance(attributes, dict) or "exec_module" in attributes:
        # The loader is a class, has no attributes of its own, or is already shadowed. `find_spec` then detects torch by
        # its lazy imports.
        return

    def exec_module(module: object) -> None:
        if getattr(module, "__name__", "") == "torch":
            _begin_ahead()
        try:
            real(module)
        finally:
            # Restore the loader even if torch's import fails. The finder stays for the next attempt.
            if attributes.get("exec_module") is exec_module:
                del attributes["exec_module"]
        if getattr(module, "__name__", "") == "torch":
            _fire()

    attributes["exec_module"] = exec_module


def _torch_is_whole() -> bool:
    """Whether torch is imported completely."""
    module = sys.modules.get("torch")
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _claim() -> bool:
    """Remove the waiting finder. Returns true for one caller only, and false if the finder is already removed."""
    try:
        finder = _waiting.pop()
    except IndexError:
        return False
    try:
        sys.meta_path.remove(finder)
    except ValueError:
        pass  # other code has removed the finder from sys.meta_path
    return True


def _fire() -> None:
    global _state  # noqa: PLW0603
    if _claim():
        _state = "fired"
        _route()


def _note_start() -> None:
    """Set `at_start` if the interpreter itself is importing `site`, so no code of the program has run yet.

    A program can also call this hook, or can call `site`, which then runs .pth files. In these cases the outermost
    frame belongs to the program, or is not the body of `site`.
    """
    global at_start  # noqa: PLW0603
    outermost = None
    frame = sys._getframe()
    while frame is not None:
        if not frame.f_code.co_filename.startswith("<frozen importlib"):
            outermost = frame
        frame = frame.f_back  # type: ignore[assignment]
    site = sys.modules.get("site")
    if outermost is None or site is None or outermost.f_code.co_name != "<module>":
        return
    if outermost.f_globals is getattr(site, "__dict__", None):
        try:
            at_start = time.clock_gettime(_COARSE), time.clock_gettime(time.CLOCK_BOOTTIME), dict(sys.modules)
        except OSError:
            pass  # a sandbox without these clocks


def _make_up_devices() -> None:
    """Simulate a GPU in a process of `--target` (docs/guides/targets.md). If the simulation fails, end the process."""
    from precompiled import parts

    made_up = parts.MADE_UP_CUDA.get()
    if made_up is None:
        raise SystemExit("made-up CUDA: CUDA_MADE_UP is set, but precompiled's part `made_up_cuda` is not installed")
    made_up.activate()


def _mark() -> None:
    """Create a file that proves to `precompiled timeline` that this process has the hook on."""
    try:
        os.close(os.open(os.path.join(os.environ["PRECOMPILED_TIMELINE"], "hook"), os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        pass  # `timeline` has ended, or another user runs this process


def _record() -> None:
    """Begin to record imports, if watch mode started this process to capture graphs (docs/guides/watch.md)."""
    try:
        from precompiled import parts

        parts.WATCH.require().record()
    except Exception as error:  # noqa: BLE001 - the run continues; the watch reports that it captured nothing
        _pass_on(error)
        note("this capture is not recorded", error)


def _begin_ahead() -> None:
    """If a remote is set, request what this program used last. The remote's helper fetches it during torch's import."""
    try:
        from precompiled.client.process import PROCESS

        settings = PROCESS.settings()
        if settings.has_helper:
            from precompiled import parts

            parts.REMOTE.require().begin(settings)
    except Exception as error:  # noqa: BLE001 - `_route` tries again, and records the error
        _pass_on(error)


def _route() -> None:
    try:
        from precompiled import routing
        from precompiled.client.process import PROCESS
        from precompiled.core import files

        if at_start is not None:
            files.note_hook(*at_start)
        PROCESS.torch_imported = (torch_began, time.time() if torch_began else 0.0)
        routing.on_torch_imported()
    except Exception as error:  # noqa: BLE001 - no failure of precompiled's may reach the program's `import torch`
        _pass_on(error)
        note("torch.compile is not routed", error)


def _pass_on(error: Exception) -> None:
    """Raise ``error`` if a signal handler of the program raised it."""
    try:
        from precompiled.core import interruptions
    except ImportError:  # a broken installation has caused ``error``
        return
    interruptions.pass_on(error)
