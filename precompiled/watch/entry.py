"""``python -m precompiled.watch.entry pkg.module:factory``: capture the graphs of entry points. The watcher runs it.

The capture first uses fake tensors. If the factory or its callables cannot run with fake tensors, the process restarts
itself (exec) with ``--real``. Without the restart, objects with fake tensors would mix with real tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from precompiled import hook
from precompiled.core.errors import PrecompiledError
from precompiled.core.files import is_users
from precompiled.core.names import attribute_at
from precompiled.core.paths import CAPTURE_VARIABLE
from precompiled.watch import recorder as recording

MARK = "__precompiled_entry_point__"  # set by precompiled.entry_point
_HERE = os.path.dirname(os.path.abspath(__file__))


class EntryPointError(PrecompiledError):
    """The target names no factory, or the factory returns something other than pairs."""

    code = "entry-point"


class _NotWithFakes(Exception):
    """A run with fake tensors failed. Carries the reason."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m precompiled.watch.entry", description=__doc__)
    parser.add_argument(
        "target", help="pkg.module:factory, or pkg.module for all functions with @precompiled.entry_point"
    )
    parser.add_argument("--real", metavar="WHY", help="use real tensors")
    options = parser.parse_args(argv)
    recorder = recording.begin()
    if recorder is None:
        parser.error(f"{CAPTURE_VARIABLE} is not set: only the watcher starts this program")
    try:
        _capture(options.target, options.real, recorder)
    except _NotWithFakes as error:
        recorder.flush()
        _again_with_real_tensors(options.target, str(error))
    except BaseException as error:  # noqa: BLE001 - includes SystemExit, since a module may exit during its import
        missing = _missing_module_files(error)
        recorder.flush()
        recorder.tell(
            "done", ok=False, error=_trimmed(error), note=options.real or "", fake=options.real is None, missing=missing
        )
        return 1
    recorder.flush()
    recorder.tell("done", ok=True, error="", note=options.real or "", fake=options.real is None, missing=[])
    return 0


def _capture(target: str, real: str | None, recorder: recording.Recorder) -> None:
    hook.enable()
    name, _, attribute = target.partition(":")
    module = importlib.import_module(name)
    for factory in _factories(module, attribute, target):
        marks = {"files": [], "fake": True, "compile": True, **getattr(factory, MARK, {})}
        base = Path(inspect.getfile(inspect.unwrap(factory))).parent
        sources = {os.path.abspath(base / path): "" for path in marks["files"]}
        if sources:
            recorder.tell("files", files=sources)
        if real is not None or not marks["fake"]:
            _run(factory, marks["compile"])
            continue
        from precompiled.torch_internals.client.fake_run import fake_tensors

        try:
            with fake_tensors():
                _run(factory, marks["compile"])
        except Exception as error:
            raise _NotWithFakes(
                f"with real tensors, since with fake ones {type(error).__name__}: {error}"[:500]
            ) from error


def _factories(module: ModuleType, attribute: str, target: str) -> list[Callable[[], object]]:
    if attribute:
        found = attribute_at(module, attribute)
        if not callable(found):
            raise EntryPointError(f"{target} is not a function", "Name a factory: pkg.module:function")
        return [found]
    marked = [value for value in vars(module).values() if callable(value) and MARK in getattr(value, "__dict__", {})]
    marked = list({id(value): value for value in marked}.values())  # one factory may have several names
    if not marked:
        raise EntryPointError(f"nothing in {target} is marked", "Mark a factory with @precompiled.entry_point")
    return marked


def _run(factory: Callable[[], object], compile: bool) -> None:
    """Call the factory's callables with their example inputs, so that Dynamo traces them."""
    import torch

    # The keys are ids of the callables, because pairs with the same callable must call one compiled function.
    compiled: dict[int, tuple[Any, Any]] = {}
    for function, examples in _pairs(factory()):
        known = compiled.get(id(function))
        if known is None:
            known = compiled[id(function)] = (function, _compiled(torch, function) if compile else function)
        for arguments, keywords in _calls(examples):
            known[1](*arguments, **keywords)


def _compiled(torch: ModuleType, function: object) -> Any:
    """Compile a function as torch.compile does. An already compiled function is returned unchanged."""
    marks = ("_orig_mod", "_torchdynamo_orig_callable")  # of torch.compile(module), torch.compile(function)
    if any(hasattr(function, name) for name in marks) or getattr(function, "_compiled_call_impl", None) is not None:
        return function
    return torch.compile(function)


def _pairs(made: object) -> Iterator[tuple[object, object]]:
    """Yield the pairs in a factory's result: one pair, several pairs, or a generator of pairs. A generator's pairs run
    one by one.
    """
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        made = [made]
    if isinstance(made, (str, bytes)) or not hasattr(made, "__iter__"):
        raise EntryPointError(
            f"the factory returned a {type(made).__name__}", "Return (callable, example inputs), or several such pairs"
        )
    for pair in made:
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[0]):
            raise EntryPointError(
                "the factory gave something that is not a pair",
                "Return (callable, example inputs), or several such pairs",
            )
        yield pair


def _calls(examples: object) -> Iterator[tuple[tuple[object, ...], dict[str, object]]]:
    """Yield, for each example, the positional and the keyword arguments of a call.

    A list contains several examples. An example is a tuple of positional arguments, a dict of keyword arguments, or the
    only argument.
    """
    for example in examples if isinstance(examples, list) else [examples]:
        if isinstance(example, tuple):
            yield example, {}
        elif isinstance(example, dict) or (hasattr(example, "keys") and hasattr(example, "__getitem__")):
            yield (), dict(example)
        else:
            yield (example,), {}


# ---------------------------------------------------------------- ends


def _again_with_real_tensors(target: str, why: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "precompiled.watch.entry", target, "--real", why])


def _missing_module_files(error: BaseException) -> list[str]:
    """The files that would define a missing module: the user may save them at any moment."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return []
    parts = error.name.split(".")
    found = []
    for entry in sys.path:
        base = os.path.abspath(os.path.join(entry, *parts))
        if is_users(base):
            found += [f"{base}.py", os.path.join(base, "__init__.py")]
    return found[:50]


def _trimmed(error: BaseException) -> str:
    """The traceback for the user, without precompiled's frames at its top."""
    frames = error.__traceback__
    while frames is not None and (
        os.path.dirname(frames.tb_frame.f_code.co_filename) == _HERE
        or frames.tb_frame.f_code.co_filename.startswith("<frozen importlib")
        or frames.tb_frame.f_code.co_filename == importlib.__file__
    ):
        frames = frames.tb_next
    if isinstance(error, EntryPointError):
        return f"{error.code}: {error}"
    lines = traceback.format_exception(type(error), error, frames)
    return "".join(lines).strip()[-recording.ERROR_CHARS :]


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        status = main(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
    # All messages are sent. A shutdown of the interpreter would take as long as a small capture.
    os._exit(status)
