"""Runs programs of tests/fuzz/package_grammar.py, each with changed inputs, environment, arguments and configuration.

Usage: changed_program.py SPEC. SPEC is a file with a JSON object:

- ``folder``: the folder of the programs. The file ``ch`` in this folder is an input of each program.
- ``programs``: a list of pairs: a module's name, and the changes to try (tests/fuzz/changes.py)
- ``task``: "ours" (precompiled's packages), "upstream" (torch's ``caching_precompile``), or "plain" (neither)

Each program runs in a fork, which executes the module anew for each change. With "upstream", each change has its own
fork, because torch loads a package once per process. Prints a line of JSON for each program: a list with the outcome of
each change.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forgotten_modules
import torch

SPEC = json.loads(Path(sys.argv[1]).read_text())
FOLDER = Path(SPEC["folder"])
ARGUMENTS = ["2.0"]


@contextlib.contextmanager
def calling(setter: Callable[[Any], object], value: object, before: object) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(before)


# What a program may set in torch before it calls a compiled function.
SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "default dtype": lambda: calling(torch.set_default_dtype, torch.float64, torch.float32),
    "no grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "deterministic": lambda: calling(torch.use_deterministic_algorithms, True, False),
    "threads": lambda: calling(torch.set_num_threads, 2, 1),
    "precision": lambda: calling(torch.set_float32_matmul_precision, "high", "highest"),
    "autocast": lambda: torch.autocast("cpu"),
    "default device": lambda: torch.device("cpu"),
    "anomaly": torch.autograd.set_detect_anomaly,
    "no mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "dynamo: no specialization": lambda: torch._dynamo.config.patch(specialize_int=False, specialize_float=False),
    "dynamo: dynamic": lambda: torch._dynamo.config.patch(assume_static_by_default=False),
    "dynamo: outputs": lambda: torch._dynamo.config.patch(capture_scalar_outputs=True),
    "dynamo: limit": lambda: torch._dynamo.config.patch(recompile_limit=3),
    "inductor: no fusion": lambda: torch._inductor.config.patch(epilogue_fusion=False),
    "inductor: casts": lambda: torch._inductor.config.patch(emulate_precision_casts=True),
}
TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "same": lambda x: x,
    "values": lambda x: (x.detach() + 1).requires_grad_(x.requires_grad),
    "double": lambda x: x.detach().double().requires_grad_(x.requires_grad),
    "transposed": lambda x: x.detach().t().requires_grad_(x.requires_grad),
    "smaller": lambda x: x.detach()[:3, :3].clone().requires_grad_(x.requires_grad),
    "gradient": lambda x: x.detach().requires_grad_(not x.requires_grad),
    "parameter": lambda x: torch.nn.Parameter(x.detach()),
}


def outcome(function: Callable[..., Any], x: torch.Tensor) -> str:
    """Runs a function forward and, if possible, backward. Returns the results or the exception as text."""
    try:
        value = function(x)
        found = [value.detach(), x.detach()]
        if x.requires_grad and value.requires_grad:
            found += [one for one in torch.autograd.grad(value.sum(), [x], allow_unused=True) if one is not None]
        return ", ".join(
            f"{one.dtype}{[round(number, 2) for number in one.double().flatten().tolist()]}" for one in found
        )
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


@contextlib.contextmanager
def changed(name: str, change: dict[str, Any]) -> Iterator[None]:
    """Apply a change: the file, the environment, the arguments and torch's settings."""
    (FOLDER / "ch").write_text(change["file"])
    environment, arguments = dict(os.environ), sys.argv
    os.environ.update(change["environment"])
    sys.argv = [name, *change["arguments"]]
    try:
        with contextlib.ExitStack() as settings:
            for setting in change["settings"]:
                settings.enter_context(SETTINGS[setting]())
            yield
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(environment)


def examine(name: str, change: dict[str, Any]) -> dict[str, Any]:
    counters = torch._dynamo.utils.counters
    counters.clear()
    known = len(reports())
    with changed(name, change), contextlib.ExitStack() as own:
        module = importlib.import_module(name)
        if hasattr(module, "context"):
            own.enter_context(module.context())
        results = []
        for compiled in (False, True):
            torch.manual_seed(0)
            function, [[x]] = module.build()
            results.append(outcome(torch.compile(function) if compiled else function, TENSORS[change["tensor"]](x)))
    if SPEC["task"] == "upstream":
        from torch._dynamo.precompile_context import PrecompileContext

        PrecompileContext.save_to_dynamo_cache()
        used = bool(counters["dynamo_cache"]["dynamo_cache_hit"]) and not counters["frames"]["total"]
    else:
        states = {report.state for report in reports()[known:]}
        used = bool(states) and states <= {"used", "skipped"}
    flush()
    forgotten_modules.forget(name)
    return {"used": used, "eager": results[0], "got": results[1]}


def reports() -> list[Any]:
    if SPEC["task"] != "ours":
        return []
    import precompiled

    return precompiled.package_report()


def flush() -> None:
    if SPEC["task"] == "ours":
        from precompiled.client.process import PROCESS

        assert PROCESS.packages is None or PROCESS.packages.flush(60)


def answer(name: str, changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for change in changes:
        try:
            found.append(examine(name, change))
        except Exception as error:
            forgotten_modules.forget(name)
            text = f"raised {type(error).__name__}: {re.sub(r' at 0x[0-9a-f]+', '', str(error))}"
            found.append({"used": False, "eager": text, "got": text})  # the program raises before it calls anything
    return found


def run_alone(name: str, changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            json.dump(answer(name, changes), stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else [{"used": False, "eager": "", "got": "died"} for _ in changes]


def main() -> None:
    sys.path.insert(0, str(FOLDER))
    sys.dont_write_bytecode = True
    if SPEC["task"] == "ours":
        import precompiled

        precompiled.enable()
    torch.compile(torch.sin, backend="eager")(torch.ones(1))  # Dynamo's first imports, once for all forks
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    torch._dynamo.config.caching_precompile = SPEC["task"] == "upstream"
    for name, changes in SPEC["programs"]:
        # Run each program alone: Dynamo fills tables at its first trace, and a program that a package serves leaves
        # them empty.
        parts = [changes] if SPEC["task"] == "ours" else [[change] for change in changes]
        print(json.dumps([one for part in parts for one in run_alone(name, part)]), flush=True)


if __name__ == "__main__":
    main()
