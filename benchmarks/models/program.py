"""Runs one model of suite.py, compiled in one of several ways, and measures it.

Usage: python -m benchmarks.models.program SPEC. SPEC is a JSON object: ``model``, ``size``, ``task``, ``shapes`` of
suite.py; ``way``:

    eager       not compiled
    traced      torch.compile(backend="eager"): Dynamo alone
    compile     torch.compile; the caller enables precompiled, caches and Inductor's modes
    artifacts   as compile, after torch.compiler.load_cache_artifacts of the file ``path``
    aoti        torch.export and AOTInductor: package written to ``path``, loaded, and called
    aoti-load   the package of aoti, loaded and called

Optional:

- ``pending``: while graphs are pending, "step" or "wait"
- ``steps``: number of further steps
- ``device``: the device of the model, by default the CPU
- ``mode``: the mode of torch.compile
- ``dtype``: the dtype of the model's parameters, by default float32
- ``optimizer``: whether each step includes a step of AdamW
- ``check``: whether to compare outputs and gradients with eager's at the end
- ``serve``: each stdin line "go N" runs N steps and prints their seconds
- ``save``: file for torch.compiler.save_cache_artifacts at the end

Prints one JSON line. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import time

BEGAN = time.monotonic()

import importlib  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

TORCH = time.monotonic()

import transformers  # noqa: E402

import precompiled  # noqa: E402
from benchmarks.models import suite  # noqa: E402
from benchmarks.models.compare import unlike  # noqa: E402

IMPORTED = time.monotonic()
PENDING_LIMIT_S = 1000.0


def reports() -> list[dict[str, Any]]:
    return [vars(graph) for graph in precompiled.report()]


def phases() -> dict[str, float]:
    """Return the seconds that torch measures (torch._dynamo.utils.dynamo_timed), by torch's names."""
    utils = sys.modules.get("torch._dynamo.utils")
    return {} if utils is None else {name: sum(values) for name, values in utils.compilation_time_metrics.items()}


def counters() -> dict[str, dict[str, int]]:
    """Return torch's counts of cache hits and misses."""
    utils = sys.modules.get("torch._dynamo.utils")
    names = ("aot_autograd", "inductor")
    return {} if utils is None else {name: dict(utils.counters[name]) for name in names}


def peak_bytes() -> int:
    """Return this process's largest resident size so far (VmHWM; getrusage may return the parent's)."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def uses_subprocess() -> bool:
    """Whether Inductor's SUBPROCESS mode used a subprocess. If SUBPROCESS cannot pickle a graph, Inductor compiles in
    process.
    """
    mode = sys.modules.get("torch._inductor.compile_fx_subproc")
    return mode is not None and mode._SubprocessFxCompile.process_pool.cache_info().currsize > 0


class Program:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.training = spec["task"] == "training"
        self.device = torch.device(spec.get("device", "cpu"))
        self.model, self.inputs = suite.build(spec["model"], spec["size"], spec["task"], spec["shapes"], self.device)
        if spec.get("dtype"):
            self.model.to(getattr(torch, spec["dtype"]))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4) if spec.get("optimizer") else None
        self.number = 0
        self.steps: list[dict[str, float]] = []
        self.marks = {"began": BEGAN, "torch": TORCH, "imported": IMPORTED, "built": time.monotonic()}
        self.function: Callable[..., torch.Tensor] = self.model
        self.before: dict[str, float] = {}  # seconds of torch's phases that have passed before the first call

    def prepare(self) -> None:
        """Make the callable. Loads and compiles in this method count as part of the first call; imports do not."""
        spec, way = self.spec, self.spec["way"]
        if way in ("compile", "artifacts", "traced"):
            settings = {
                "backend": "eager" if way == "traced" else "inductor",
                # With None (the default of torch.compile), Dynamo would recompile the second step with dynamic shapes.
                "dynamic": spec["shapes"] == "dynamic",
                **({"mode": spec["mode"]} if spec.get("mode") and way != "traced" else {}),
            }
            torch.compile(torch.nn.Identity(), **settings)  # this imports Dynamo and its backend
            self.marks["dynamo"] = time.monotonic()
            if way == "artifacts":
                with open(spec["path"], "rb") as file:
                    torch.compiler.load_cache_artifacts(file.read())
            self.function = torch.compile(self.model, **settings)
        elif way in ("aoti", "aoti-load"):
            for name in ("torch.export", "torch._inductor.package"):
                importlib.import_module(name)
            self.marks["dynamo"] = time.monotonic()
            if way == "aoti":
                with torch.no_grad():
                    exported = torch.export.export(self.model, (), self.inputs[0])
                    torch._inductor.aoti_compile_and_package(exported, package_path=spec["path"])
            self.function = torch._inductor.aoti_load_package(spec["path"])
        elif way == "eager":
            self.marks["dynamo"] = time.monotonic()
        else:
            raise ValueError(f"there is no way {way!r}")
        self.before = phases()
        self.marks["prepared"] = time.monotonic()

    def run(self, function: Callable[..., Any], inputs: dict[str, Any]) -> torch.Tensor:
        self.model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(self.training):
            output: torch.Tensor = function(**inputs)
            if self.training:
                output.backward()
        return output

    def step(self) -> float:
        inputs = self.inputs[self.number % len(self.inputs)]
        self.number += 1
        started, cpu = time.monotonic(), time.process_time()
        self.run(self.function, inputs)
        if self.optimizer is not None:
            self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # a call returns after its kernels are launched
        seconds = time.monotonic() - started
        ended = time.process_time()
        self.steps.append({"at": started, "s": seconds, "cpu_s": ended - cpu, "cpu_end_s": ended})
        return seconds

    def step_until_compiled(self) -> None:
        """Run steps until a step has called only artifacts. Sets ``compiled`` of each step."""
        before = reports()
        self.steps[0]["compiled"] = float(bool(before) and _compiled_by([], before))
        deadline = time.monotonic() + PENDING_LIMIT_S
        while not self.steps[-1]["compiled"]:
            if not before or time.monotonic() > deadline:
                return
            self.step()
            after = reports()
            self.steps[-1]["compiled"] = float(_compiled_by(before, after))
            before = after
            if all(graph["state"] in ("failed", "bypassed") for graph in after):
                return

    def check(self) -> list[str]:
        """Return the differences from eager."""
        found = []
        for inputs in self.inputs:
            results = []
            for function in (self.function, self.model):
                output = self.run(function, inputs)
                results.append(
                    {
                        "output": output.detach(),
                        **{
                            f"gradient of {name}": parameter.grad
                            for name, parameter in self.model.named_parameters()
                            if self.training
                        },
                    }
                )
            found += unlike(*results)
        return found

    def first(self) -> None:
        self.step()
        self.marks["first"] = time.monotonic()

    def serve(self) -> None:
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps([self.step() for _ in range(int(line.split()[1]))]), flush=True)


def _compiled_by(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    """Whether all calls between the reports ``before`` and ``after`` ran artifacts. False if there were no calls, or if
    a graph that is still pending ran no artifact.
    """
    earlier = {graph["id"]: graph for graph in before}

    def calls(graph: dict[str, Any], name: str) -> int:
        return graph[name] - earlier.get(graph["id"], {name: 0})[name]

    return (
        not any(calls(graph, "calls_eager") for graph in after)
        and any(calls(graph, "calls_compiled") for graph in after)
        and all(graph["state"] != "pending" or calls(graph, "calls_compiled") for graph in after)
    )


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    transformers.utils.logging.set_verbosity_error()
    program = Program(spec)
    program.prepare()
    program.first()
    during = {name: seconds - program.before.get(name, 0.0) for name, seconds in phases().items()}
    result: dict[str, Any] = {"first": reports(), "phases": during, "counters": counters()}
    if spec.get("pending") == "wait":
        precompiled.wait()
    else:
        program.step_until_compiled()
    result["later"] = len(program.steps)  # the index of the first further step
    if spec.get("serve"):
        program.serve()
    for _ in range(spec.get("steps", 0)):
        program.step()
    program.marks["stepped"] = time.monotonic()
    result |= {"marks": program.marks, "steps": program.steps, "reports": reports()}
    if spec.get("steps"):
        result["step_s"] = statistics.median(step["s"] for step in program.steps[result["later"] :])
    result |= {"peak_bytes": peak_bytes(), "subprocess": uses_subprocess()}
    if path := spec.get("save"):
        saved = torch.compiler.save_cache_artifacts()
        with open(path, "wb") as file:
            file.write(saved[0] if saved else b"")
    if spec.get("check"):
        result["different"] = program.check()
    # CPU seconds that do not belong to a start: those of later steps and of the check.
    started = program.steps[0]["cpu_end_s"]
    result["aside_cpu_s"] = time.process_time() - started
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
