"""Turns a graph from Dynamo into a *program*: all that a compile depends on, as plain data.

A program is a dict of JSON values::

    graph        the canonical graph (graph_codec.py)
    inputs       metadata of the graph's inputs, in order; digests of frozen weights (weights.py)
    modes        grad mode, autocast, determinism, threads, ...
    configs      Inductor's and functorch's configuration, with mode= and options= applied
    environment  Python, torch, triton, compiler, CPU (environment.py)

core/program_data.py has the types of these values.

The key hashes a program's bytes (key.py). The worker compiles from these bytes (precompiled/compiler/). Two parts of
the bytes are not in the key: ``hints`` (the values of the symbolic sizes) and ``floats`` (the values of the symbolic
floats). Variants of one key differ in ``hints``. A submitted program also has ``about`` (names and source lines) and,
after the JSON, the data of frozen weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.core.json_text import parse_json
from precompiled.core.program_data import CaptureState, InputsData, ProgramData
from precompiled.graph import devices, environment, job, weights
from precompiled.graph.key import SECTIONS
from precompiled.torch_internals.graph import (
    ambient_modes,
    compiler_config,
    graph_codec,
    input_metadata,
    operator_overrides,
    process_groups,
)
from precompiled.torch_internals.graph.symbolic_sizes import guard_check, is_size_input, size_values
from precompiled.torch_internals.ranks import group_names

# The section with source lines for reports (torch_internals/graph/source_lines.py). The key and the compile ignore it.
ABOUT = "about"


@dataclass(frozen=True, kw_only=True)
class SerializedGraph(CaptureState):
    """A captured graph. ``sections`` has the JSON text of each section, in the order of SECTIONS."""

    sections: dict[str, str]
    hints: list[int]  # the values of the symbolic sizes in this call; not part of the key
    floats: list[float]  # the values of the symbolic floats in this call
    no_stand_in: str  # why the graph must not run eager before its artifact is ready, or ""
    weights: weights.Weights | None = None  # the frozen weights
    meshes: tuple[object, ...] = ()  # the graph's device meshes in this process

    def to_bytes(self, hints: list[int] | None = None, about: str = "") -> bytes:
        """The program's bytes for a worker.

        ``hints`` replaces the captured values. ``about``: the section's JSON text, or "".
        """
        body = ",".join(f'"{name}":{self.sections[name]}' for name in SECTIONS)
        values = f'"hints":{_dump(self.hints if hints is None else hints)},"floats":{_dump(self.floats)}'
        if about:
            values += f',"{ABOUT}":{about}'
        return f"{{{body},{values}}}".encode()

    def to_job(self, about: str, hints: list[int]) -> bytes:
        """The bytes of a job: the program and the data of frozen weights.

        Raises CompileFailed if a weight has changed.
        """
        data = b"" if self.weights is None else self.weights.data()
        return job.join_parts(self.to_bytes(hints, about), data)

    @property
    def frozen(self) -> tuple[torch.Tensor, ...]:
        return () if self.weights is None else self.weights.tensors

    def sizes(self, hints: list[int]) -> list[int]:
        """The values of the size inputs, in order, if the symbols have the values ``hints``."""
        return size_values(json.loads(self.sections["inputs"]), hints) if self.size_inputs else []

    def hints_for(self, sizes: list[int]) -> list[int] | None:
        """The values of the symbols for size inputs ``sizes``; None if ``sizes`` does not determine every symbol."""
        args = json.loads(self.sections["inputs"])["args"]
        inputs = [(args[at]["size"], size) for at, size in zip(self.size_inputs, sizes, strict=True)]
        known = {encoded.get("s"): size for encoded, size in inputs if isinstance(encoded, dict)}
        found = [known.get(symbol) for symbol in range(len(self.hints))]
        return None if None in found else [size for size in found if size is not None]


def restore_program(kept: ProgramData, state: CaptureState) -> SerializedGraph:
    """Rebuild a program from its parsed sections ``kept`` and the state of its capture."""
    return SerializedGraph(
        **vars(state),
        sections={name: _dump(kept[name]) for name in SECTIONS},
        hints=kept["hints"],
        floats=kept["floats"],
        no_stand_in=_no_stand_in(kept["graph"], kept["inputs"]),
    )


def _no_stand_in(graph: list[list[list[Any]]], inputs: InputsData) -> str:
    # A graph with DTensors must not run eager, because any of its operations may communicate with other ranks.
    return graph_codec.no_stand_in(graph) or (graph_codec.MIXED_RANKS if "meshes" in inputs else "")


def _dump(value: object) -> str:
    # Keys are not sorted: dicts have a fixed order, or their order has a meaning (keyword arguments).
    return json.dumps(value, separators=(",", ":"))


def capture(
    module: torch.fx.GraphModule, options: Mapping[str, object], held: Sequence[torch.Tensor] = ()
) -> SerializedGraph:
    """Capture a Dynamo graph and the modes and settings around it. Has no side effects. Raises Bypass with the reason.

    ``held``: the tensors that are the graph's last inputs (torch_internals/client/graph_attributes.py).
    """
    if next(iter(module.parameters()), None) is not None or next(iter(module.buffers()), None) is not None:
        raise Bypass("the graph contains parameters or buffers", code="graph-attribute")
    groups = process_groups.used_groups(module)
    numbers = {name: group_names.numbered_name(number) for number, name in enumerate(groups)}
    graph = graph_codec.encode(module, numbers)
    operator_overrides.refuse(graph)
    inputs = input_metadata.describe_inputs([node for node in module.graph.nodes if node.op == "placeholder"])
    for name in inputs.meshes.groups():
        groups.setdefault(name, process_groups.size(name))
        numbers.setdefault(name, group_names.numbered_name(len(numbers)))
    device = devices.device_of(module, graph, inputs.args)
    # Even a graph on a GPU may have values on the CPU. These values need kernels for the CPU.
    uses_cpu = device == "cpu" or devices.uses_cpu(module, inputs.args)
    read = ambient_modes.read(uses_cpu=uses_cpu, on_gpu=device != "cpu")
    state = {**read, "groups": {numbers[name]: size for name, size in groups.items()}}
    settings = compiler_config.snapshot(options)
    compiler_config.refuse_device(settings, device)
    if device != "cpu":
        compiler_config.refuse_other_cudagraphs(settings, module.meta.get("cudagraph_annotation"))
    facts = environment.facts(device, uses_cpu=uses_cpu)
    frozen = None
    if held and compiler_config.freezes(settings):
        frozen = weights.capture_weights(held, inputs.args[len(inputs.args) - len(held) :])
    if groups:
        compiler_config.refuse_ranks(settings)
        if compiler_config.ask_for_ranks(settings):
            state["ranks"] = {numbers[name]: process_groups.rank(name) for name in groups}
    graph, described, known = devices.for_a_worker([graph, inputs.to_plain(numbers), state], device)
    sections = {
        "graph": _dump(graph),
        "inputs": _dump(described),
        "modes": _dump(known),
        "configs": _dump(settings),
        "environment": _dump(facts),
    }
    return SerializedGraph(
        sections=sections,
        modes=state,
        device=device,
        cudagraphs=device != "cpu" and bool(settings["inductor"].get("triton.cudagraphs")),
        hints=inputs.hints,
        floats=inputs.floats,
        size_inputs=[position for position, item in enumerate(inputs.args) if is_size_input(item)],
        modules={**graph_codec.modules(graph), **inputs.modules, **compiler_config.modules(settings)},
        no_stand_in=_no_stand_in(graph, described),
        classes=inputs.described.classes,
        weights=frozen,
        groups=tuple(groups),
        meshes=tuple(inputs.meshes.found),
        context=compiler_config.context(options),
    )


def modules(program: ProgramData) -> dict[str, str]:
    """Map the names of all that a worker needs for a parsed program (modules, operators, kernels) to digests."""
    found = {**graph_codec.modules(program["graph"]), **input_metadata.modules(program["inputs"])}
    return {**found, **compiler_config.modules(program["configs"])}


def is_served(program: ProgramData, guards: Iterable[str]) -> bool:
    """Whether at least one of ``guards`` (of several artifacts) accepts the sizes of a parsed program."""
    values = size_values(program["inputs"], program["hints"])
    return any(guard_check(item)(values) for item in guards)


def parse(data: bytes) -> ProgramData:
    """Decode a program that ``to_bytes`` encoded. Raises CompileFailed for other bytes."""
    try:
        program: ProgramData = parse_json(data)
    except ValueError as error:
        raise CompileFailed(f"the graph does not decode: {error}", code="undecodable-graph") from error
    if not isinstance(program, dict) or set(program) - {ABOUT} != {*SECTIONS, "hints", "floats"}:
        raise CompileFailed("the graph does not decode: it is not a program", code="undecodable-graph")
    return program
