"""precompiled: a per-host daemon that compiles torch.compile's graphs once, in the background, for every process.

PYTEST_DONT_REWRITE: pytest would otherwise rewrite the assertions of all modules of a distribution with a plugin.

``enable()`` or the hook (`precompiled run`, `precompiled enable`) switches it on. Programs use ``torch.compile`` as
before.
"""

# Nothing is imported, not even typing: with the hook on, every Python process of the host runs this file at its
# start, and `import typing` alone would double the time of that (tests/test_bootstrap.py).
from precompiled.version import VERSION as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from precompiled.client.ledger import GraphReport
    from precompiled.packages.function_report import FunctionReport

__all__ = [
    "__version__",
    "disable",
    "enable",
    "entry_point",
    "load_package",
    "package_report",
    "report",
    "save_package",
    "wait",
]


def enable(mode: "str | None" = None) -> bool:
    """Route torch.compile in this process to precompiled. Returns whether it is on: PRECOMPILED=0 keeps it off.

    ``mode``: "eager" (default), "wait", "lookup" or "off". Raises ConfigError for any other value.
    """
    from precompiled import hook

    routed = hook.enable(mode)
    _forget_settings()
    return routed


def disable() -> None:
    """Restore torch.compile's own backend in this process. Compiled graphs stay in use."""
    from precompiled import hook

    hook.disable()
    _forget_settings()


def wait(timeout: "float | None" = None) -> bool:
    """Block until no graph of this process is pending. Returns false if some still are after ``timeout`` seconds."""
    from precompiled.client.process import PROCESS

    return True if PROCESS.session is None else PROCESS.session.wait(timeout)


def report() -> "list[GraphReport]":
    """One report for each graph that this process captured, in order."""
    from precompiled.client.process import PROCESS

    return [] if PROCESS.session is None else PROCESS.session.reports()


def package_report() -> "list[FunctionReport]":
    """One report, with the failed guards, for each frame with tensors that Dynamo handled while packages were on."""
    from precompiled.client.process import PROCESS

    return [] if PROCESS.packages is None else list(PROCESS.packages.reports)


def save_package(compiled: "object", path: "str") -> None:
    """Write the package of ``compiled``, a callable that torch.compile returned, to one file, for a host of the same
    kind.

    The file contains guards, bytecode and artifacts of all calls so far. The hook and packages must have been on during
    these calls. The file is code: a process that loads the file runs its code. Raises PackageError.
    """
    from precompiled.packages import portable

    portable.save(compiled, path)


def load_package(compiled: "object", path: "str", *, check_source: bool = True) -> int:
    """Load a file of ``save_package`` into ``compiled``, so that its calls need no trace. Returns the number of
    entries.

    The file is code and is run: load only files that you trust as you trust a program. Every digest in it is verified
    before anything is decoded. Raises PackageError, which names the difference, if the file is for another function,
    source, torch, Python, CPU or GPU. ``check_source=False`` skips only the comparison of sources (for a class, also
    of its attribute values).
    """
    from precompiled.packages import portable

    return portable.load(compiled, path, check_source=check_source)


def entry_point(
    function: "Callable[..., Any] | None" = None,
    *,
    files: "tuple[str, ...] | list[str]" = (),
    fake: bool = True,
    compile: bool = True,
) -> "Callable[..., Any]":
    """Mark a factory for `precompiled watch pkg.module`, as ``@entry_point`` or
    ``@entry_point(files=["model.yaml"])``.

    The factory takes no arguments. It returns, or yields one by one, pairs of a callable and its example inputs
    (docs/guides/watch.md).

    - ``files``: further files that it depends on, relative to the folder of its own file
    - ``fake=False``: the factory needs real tensors
    - ``compile=False``: the callable calls ``torch.compile`` itself

    The mark changes nothing for other callers of the factory.
    """

    def mark(factory: "Callable[..., Any]") -> "Callable[..., Any]":
        marks = {"files": [str(path) for path in files], "fake": fake, "compile": compile}
        factory.__precompiled_entry_point__ = marks  # type: ignore[attr-defined]
        return factory

    return mark if function is None else mark(function)


def load_ipython_extension(shell: "Any") -> None:
    """`%load_ext precompiled` in IPython: the hook, a line below each cell with graphs, and the command
    `%precompiled`.
    """
    from precompiled import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: "Any") -> None:
    """`%unload_ext precompiled`: removes the line and the command. The hook stays on."""
    from precompiled import notebook

    notebook.unload(shell)


def _forget_settings() -> None:
    from precompiled.client.process import PROCESS

    if PROCESS.session is not None:
        PROCESS.session.settings = PROCESS.settings()  # applies from the next graph on
