"""precompiled: a per-host daemon that compiles torch.compile's graphs once, in the background, for every process.

PYTEST_DONT_REWRITE: pytest would rewrite the assertions of all modules of a distribution with a plugin.

``enable()`` or the hook (`precompiled run`, `precompiled enable`) switches it on; ``torch.compile`` is used as always.
"""

# Nothing is imported here, not even typing: with the hook on, this file runs at the start of every Python process of
# the host, and `import typing` alone would double that start (tests/test_bootstrap.py).
from precompiled.version import VERSION as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from precompiled.client.ledger import GraphReport
    from precompiled.packages.automatic import FunctionReport

__all__ = ["__version__", "disable", "enable", "entry_point", "load_package", "package_report", "report",
           "save_package", "wait"]  # fmt: skip


def enable(mode: "str | None" = None) -> bool:
    """Route torch.compile in this process to precompiled; true when it is on (not with PRECOMPILED=0).

    ``mode``: "eager" (default), "wait", "lookup" or "off"; raises ConfigError for another.
    """
    from precompiled import hook

    routed = hook.enable(mode)
    _forget_settings()
    return routed


def disable() -> None:
    """Give torch.compile back its own backend in this process; what is compiled already goes on being used."""
    from precompiled import hook

    hook.disable()
    _forget_settings()


def wait(timeout: "float | None" = None) -> bool:
    """Block until no graph of this process is pending; false when some still are after ``timeout`` seconds."""
    from precompiled.client.process import PROCESS

    return True if PROCESS.session is None else PROCESS.session.wait(timeout)


def report() -> "list[GraphReport]":
    """One report for each graph that this process captured, in order."""
    from precompiled.client.process import PROCESS

    return [] if PROCESS.session is None else PROCESS.session.reports()


def package_report() -> "list[FunctionReport]":
    """What became of each frame with tensors that Dynamo met, in order, with packages on; with guards that failed."""
    from precompiled.client.process import PROCESS

    return [] if PROCESS.packages is None else list(PROCESS.packages.reports)


def save_package(compiled: "object", path: "str") -> None:
    """Write what ``compiled`` (what torch.compile gave) was compiled to into one file, for another host of this kind.

    Guards, bytecode and artifacts of what was called so far, with the hook and packages on. The file is
    code: a process that loads it runs it. Raises PackageError.
    """
    from precompiled.packages import portable

    portable.save(compiled, path)


def load_package(compiled: "object", path: "str", *, check_source: bool = True) -> int:
    """Use a file of ``save_package`` for ``compiled``: its calls need no tracing; gives the number of its entries.

    The file is code, and is run: load only what you trust as you trust a program. Every digest in it is verified
    before anything is decoded. Raises PackageError that names the difference when it is for another function, source,
    torch, Python, CPU or GPU; ``check_source=False`` overrides the check of sources alone, which for classes is that of
    their values, too.
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
    """Mark a factory for `precompiled watch pkg.module`, as ``@entry_point`` or ``@entry_point(files=["model.yaml"])``.

    The factory takes nothing. It returns, or yields one after the other, pairs of a callable and its example inputs
    (docs/guides/watch.md). ``files``: what else it depends on, relative to its own file's folder. ``fake=False``: needs
    real tensors. ``compile=False``: the callable calls ``torch.compile`` itself. Nothing changes for other callers.
    """

    def mark(factory: "Callable[..., Any]") -> "Callable[..., Any]":
        marks = {"files": [str(path) for path in files], "fake": fake, "compile": compile}
        factory.__precompiled_entry_point__ = marks  # type: ignore[attr-defined]
        return factory

    return mark if function is None else mark(function)


def load_ipython_extension(shell: "Any") -> None:
    """`%load_ext precompiled`, in IPython: the hook, a line below each cell that had graphs, and `%precompiled`."""
    from precompiled import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: "Any") -> None:
    """`%unload_ext precompiled`: without the line and the command; the hook stays on."""
    from precompiled import notebook

    notebook.unload(shell)


def _forget_settings() -> None:
    from precompiled.client.process import PROCESS

    if PROCESS.session is not None:
        PROCESS.session.settings = PROCESS.settings()  # for the next graph; those known so far stay
