"""A daemon compiles each graph of torch.compile once per host.

Until the daemon has compiled a graph, the program runs it eager. Most
programs do not import this module, because `precompiled run -- python
train.py` switches the hook on. In Python:

    import precompiled

    precompiled.enable()           # switch the hook on in this process
    model = torch.compile(model)   # a cache hit, or eager at first
    precompiled.wait()             # block until no graph is pending
    print(precompiled.report())    # how each graph was served, and why

    try:                           # with PRECOMPILED_REQUIRE=1
        model(x)
    except precompiled.NotServed as error:
        print(error.code)          # `precompiled explain CODE` says more

The public names:

    enable, disable                switch the hook on and off
    wait, report, package_report   wait for graphs, and see their state
    bypass, bypassed               leave a model or a block to torch
    save_package, load_package     keep traces and artifacts in a file
    entry_point                    mark what `precompiled watch` compiles
    GraphReport, FunctionReport    what the reports contain
    PrecompiledError, ConfigError, NotServed, PackageError
                                   what these functions raise

`help(precompiled.report)` describes one of them. `precompiled --help`
lists the commands. The modules below are internal, and may change with any
version.

(PYTEST_DONT_REWRITE: pytest need not rewrite this file.)
"""

# This file imports nothing, not even typing. With the hook on, every Python process of the host runs this file at its
# start. `import typing` alone would double the time (tests/test_bootstrap.py).
from precompiled.version import VERSION as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, TypeVar

    from precompiled.client.ledger import GraphReport
    from precompiled.core.errors import ConfigError, NotServed, PackageError, PrecompiledError
    from precompiled.packages.function_report import FunctionReport

    Compiled = TypeVar("Compiled")

__all__ = [
    "ConfigError",
    "FunctionReport",
    "GraphReport",
    "NotServed",
    "PackageError",
    "PrecompiledError",
    "__version__",
    "bypass",
    "bypassed",
    "disable",
    "enable",
    "entry_point",
    "load_package",
    "package_report",
    "report",
    "save_package",
    "wait",
]

# The module that defines each class of __all__.
_HOMES = {
    "ConfigError": "precompiled.core.errors",
    "FunctionReport": "precompiled.packages.function_report",
    "GraphReport": "precompiled.client.ledger",
    "NotServed": "precompiled.core.errors",
    "PackageError": "precompiled.core.errors",
    "PrecompiledError": "precompiled.core.errors",
}


def __getattr__(name: str) -> "type":
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: type = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> "list[str]":
    return __all__


def enable(mode: "str | None" = None) -> bool:
    """Make precompiled serve the graphs of torch.compile in this process.
    Returns false if precompiled stays off: with PRECOMPILED=0, or in mode
    "off".

    ``mode``: "eager" (default), "wait", "lookup" or "off". Raises
    ConfigError for any other value.
    """
    from precompiled import hook

    routed = hook.enable(mode)
    _forget_settings()
    return routed


def disable() -> None:
    """Restore torch.compile's own backend in this process. Graphs that are
    already compiled stay in use.
    """
    from precompiled import hook

    hook.disable()
    _forget_settings()


def bypass(compiled: "Compiled") -> "Compiled":
    """Leave one model or function to torch, and return it: ``model =
    bypass(torch.compile(model))``.

    The argument can also be a module after ``module.compile()``. Graphs
    that are already compiled stay in use.
    """
    from precompiled.torch_internals.client import bypassed_backend

    if not bypassed_backend.bypass(compiled):
        from precompiled.core import user_warnings

        user_warnings.warn(
            f"bypass() has no effect on {type(compiled).__name__}: it is not the result of torch.compile with the "
            "default backend. Write precompiled.bypass(torch.compile(model))"
        )
    return compiled


def bypassed() -> "AbstractContextManager[None]":
    """Let torch itself compile the graphs inside a ``with`` block, in the
    thread or asyncio task that runs the block.

    Blocks can be nested. If the block calls torch.compile, the result stays
    bypassed after the block. Graphs that were compiled before the block
    stay in use.
    """
    from precompiled.core import bypassing

    return bypassing.bypassed()


def wait(timeout: "float | None" = None) -> bool:
    """Wait until no graph of this process is pending. Returns false if a graph
    is still pending after ``timeout`` seconds.
    """
    from precompiled.client.process import PROCESS

    return True if PROCESS.session is None else PROCESS.session.wait(timeout)


def report() -> "list[GraphReport]":
    """Return a report for each graph of this process, in the order of capture.
    The list prints as a table.
    """
    from precompiled.client.process import PROCESS
    from precompiled.client.report_table import GraphReports

    return GraphReports([] if PROCESS.session is None else PROCESS.session.reports())


def package_report() -> "list[FunctionReport]":
    """Return a report for each frame that has tensors and that Dynamo handled
    while packages were on. Each report lists failed guards. The list prints
    as a table.
    """
    from precompiled.client.process import PROCESS
    from precompiled.packages.function_report import FunctionReports

    return FunctionReports([] if PROCESS.packages is None else PROCESS.packages.reports)


def save_package(compiled: "object", path: "str") -> None:
    """Save the package of ``compiled`` in one file. ``compiled`` is a callable
    that torch.compile returned.

    The file contains guards, bytecode and artifacts of all calls so far.
    The hook and packages must have been on during these calls. A host of
    the same kind can load the file with ``load_package``. Raises
    PackageError.
    """
    from precompiled.packages import portable

    portable.save(compiled, path)


def load_package(compiled: "object", path: "str", *, check_source: bool = True) -> int:
    """Load a file of ``save_package``, so that Dynamo does not trace the calls
    of ``compiled`` that the file covers. Returns the number of entries.

    Loading a file runs its code, so load only files that you trust. Raises
    PackageError if the file is for a different function, source, torch,
    Python, CPU or GPU. With ``check_source=False``, a changed source raises
    no error. The source of a class includes the values of its attributes.
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
    """Mark a function as an entry point, which `precompiled watch pkg.module`
    finds. Use it as a decorator: ``@entry_point`` or
    ``@entry_point(files=["model.yaml"])``.

    An entry point takes no arguments. It returns a pair of a callable and
    its inputs, or yields several pairs (docs/guides/watch.md). The
    decorator does not change the function.

    - ``files``: further files that the function depends on, relative to the
      folder of its own file
    - ``fake=False``: the function needs real tensors
    - ``compile=False``: the callable calls ``torch.compile`` itself
    """

    def mark(factory: "Callable[..., Any]") -> "Callable[..., Any]":
        marks = {"files": [str(path) for path in files], "fake": fake, "compile": compile}
        factory.__precompiled_entry_point__ = marks  # type: ignore[attr-defined]
        return factory

    return mark if function is None else mark(function)


def load_ipython_extension(shell: "Any") -> None:
    """`%load_ext precompiled` in IPython: turn the hook on, print a line below
    each cell with graphs, and add the command `%precompiled`.
    """
    from precompiled import parts

    parts.NOTEBOOK.require().load(shell)


def unload_ipython_extension(shell: "Any") -> None:
    """`%unload_ext precompiled`: remove the line and the command. The hook
    stays on.
    """
    from precompiled import parts

    parts.NOTEBOOK.require().unload(shell)


def _forget_settings() -> None:
    from precompiled.client.process import PROCESS

    if PROCESS.session is not None:
        PROCESS.session.settings = PROCESS.settings()  # applies from the next graph on
