"""Tests of the difference between two programs in words: one row per change, with the values before and after."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support_programs import ARGS, NODES, PROGRAM, TENSOR, changed, everything, put

from precompiled.graph import difference, listing, mode_names
from precompiled.graph.key import SECTIONS

SUBCLASS = {
    "subclass": ["mine.tensors", "Twice", "d1"],
    "inner": [["a", TENSOR]],
    "context": {"t": [1]},
    "shape": [8],
    "stride": [1],
    "device": "cpu",
    "requires_grad": False,
    "leaf": True,
}

MESH = {"device": "cpu", "shape": [2], "rank": 1}
DTENSOR = {
    "subclass": ["torch.distributed.tensor", "DTensor", ""],
    "shape": [16, 16],
    "inner": [["_local_tensor", TENSOR], ["device_mesh", {"mesh": 0}]],
    "context": {"placements": [["Shard", 0]], "dtype": "float32"},
}

CASES: dict[str, tuple[Callable[[dict[str, Any]], Any], list[str]]] = {
    "nothing": (lambda program: None, []),
    # ---- graph
    "a constant": (
        put(*NODES, 2, 2, 1, 3),
        ["operation %2: operator.mul(%0, 2) -> operator.mul(%0, 3)"],
    ),
    "a constant's type": (put(*NODES, 2, 2, 1, 2.0), ["operation %2: operator.mul(%0, 2) -> operator.mul(%0, 2.0)"]),
    "a constant that is true": (put(*NODES, 2, 2, 1, True), ["operator.mul(%0, 2) -> operator.mul(%0, True)"]),
    "a keyword argument": (put(*NODES, 3, 3, 0, 1, 4), ["%2.add(%1, alpha=2) -> %2.add(%1, alpha=4)"]),
    "an annotation": (
        lambda program: program["graph"][0][2].append({"d": [["stage", 1]]}),
        ["operator.mul(%0, 2) -> operator.mul(%0, 2), annotated {'stage': 1}"],
    ),
    "an operator": (
        put(*NODES, 2, 1, ["fn", "torch", "add"]),
        ["operation %2: operator.mul(%0, 2) -> torch.add(%0, 2)"],
    ),
    "one operation more": (
        lambda program: program["graph"][0].insert(4, ["m", "relu", [{"n": 3}], []]),
        ["number of operations: 5 -> 6  (relu: 0 -> 1)", "operation %4: output((%3,)) -> %3.relu()  (the first of 2"],
    ),
    "one operation fewer": (
        lambda program: program["graph"][0].pop(),
        ["number of operations: 5 -> 4  (output: 1 -> 0)", "operation %4: output((%3,)) -> none"],
    ),
    "an inner graph": (
        lambda program: program["graph"].append([["o", None, [1], []]]),
        [
            "number of operations: 5 -> 6",
            "number of graphs inside of operators: 0 -> 1",
            "operation %0 of graph 1: none -> output(1)",
        ],
    ),
    "a custom operator's sources": (
        put(*NODES, 2, 1, ["cop", "mine", "op", "", "mine.ops", "d2"]),
        ["operation %2: operator.mul(%0, 2) -> mine.op.default(%0, 2)"],
    ),
    "a long argument": (
        put(*NODES, 2, 2, 1, [*range(500)]),
        ["operation %2: operator.mul(%0, 2) -> operator.mul(%0, [0, 1, 2"],
    ),
    # ---- inputs
    "a shape": (
        everything(put(*ARGS, 1, "shape", [12, 16]), put(*ARGS, 1, "storage", 768)),
        ["input 1: shape [8, 16] -> [12, 16]"],
    ),
    "a symbolic shape": (put(*ARGS, 0, "shape", [{"s": 0}, 16]), ["input 0: shape [8, 16] -> [s0, 16]"]),
    "an expression": (
        put(*ARGS, 0, "shape", [{"Add": [1, {"Mul": [2, {"s": 0}]}]}, {"Mod": [{"s": 1}, 2]}]),
        ["shape [8, 16] -> [(1 + (2*s0)), Mod(s1, 2)]"],
    ),
    "a dtype": (
        everything(put(*ARGS, 0, "dtype", "bfloat16"), put(*ARGS, 0, "storage", 256)),
        ["input 0: dtype float32 -> bfloat16"],
    ),
    "strides": (put(*ARGS, 0, "stride", [1, 8]), ["input 0: strides [16, 1] -> [1, 8]"]),
    "a shape in other memory": (
        everything(put(*ARGS, 0, "shape", [4, 16]), put(*ARGS, 0, "storage", 1024)),
        ["input 0: shape [8, 16] -> [4, 16]", "input 0: bytes of storage 512 -> 1024"],
    ),
    "an offset": (put(*ARGS, 0, "offset", 4), ["input 0: storage offset 0 -> 4"]),
    "a device": (put(*ARGS, 0, "device", "cuda:0"), ["input 0: device cpu -> cuda:0"]),
    "requires grad": (put(*ARGS, 0, "requires_grad", True), ["input 0: requires_grad False -> True"]),
    "a parameter": (put(*ARGS, 0, "parameter", True), ["input 0: is a parameter False -> True"]),
    "shared memory": (put(*ARGS, 1, "shares", 0), ["input 1: shares memory with input no -> 0"]),
    "a tensor that is a size now": (put(*ARGS, 1, {"size": 5}), ["input 1: float32 [8, 16] -> an int, 5"]),
    "one input more": (
        lambda program: program["inputs"]["args"].insert(0, {**TENSOR, "dtype": "int64"}),
        ["number of inputs: 2 -> 3", "input 0: none -> int64 [8, 16]"],
    ),
    "one input fewer": (
        lambda program: program["inputs"]["args"].pop(),
        ["number of inputs: 2 -> 1", "input 1: float32 [8, 16] -> none"],
    ),
    "a mesh": (
        put("inputs", "meshes", [MESH]),
        ["mesh 0: device none -> cpu", "mesh 0: shape none -> [2]", "mesh 0: this rank none -> 1"],
    ),
    "a DTensor": (
        put(*ARGS, 1, DTENSOR),
        ["input 1: float32 [8, 16] -> float32 [16, 16] as Shard(0) on mesh 0"],
    ),
    "a placement as an argument": (
        put(*NODES, 2, 2, 1, {"t": [{"P": ["Partial", "sum"]}]}),
        ["operation %2: operator.mul(%0, 2) -> operator.mul(%0, (Partial('sum'),))"],
    ),
    "a state of DTensors": (
        put("inputs", "dtensors", {"loss_parallel": True}),
        ["DTensors: loss_parallel none -> True"],
    ),
    "a range": (put("inputs", "ranges", 0, [2, 64]), ["range of the size s0: 2 to any -> 2 to 64"]),
    # ---- modes
    "grad mode": (put("modes", "grad", False), ["grad: True -> False  (torch.no_grad"]),
    "autocast": (put("modes", "autocast", {"cpu": "bfloat16"}), ["autocast.cpu: off -> bfloat16  (torch.autocast)"]),
    "an attention backend": (put("modes", "sdp", 0, False), ["sdp.flash: True -> False  (torch.nn.attention"]),
    "threads": (put("modes", "threads", 4), ["threads: 2 -> 4  (torch.set_num_threads"]),
    "a default device": (put("modes", "default_device", "meta"), ["default_device: not set -> meta"]),
    "group": (put("modes", "groups", {"0": 4}), ["groups.0: 2 -> 4  (the process groups"]),
    "ranks": (put("modes", "ranks", {"0": 1}), ["ranks.0: not set -> 1  (this rank's place"]),
    "a mode of another version": (put("modes", "newer", True), ["newer: not set -> True"]),
    # ---- configs
    "a setting": (put("configs", "inductor", "max_autotune", True), ["inductor.max_autotune: False -> True"]),
    "a setting that is new": (put("configs", "inductor", "fresh", [1]), ["inductor.fresh: not set -> [1]"]),
    "a setting that is gone": (
        put("configs", "inductor", "x", ...),
        ["inductor.x: (1, torch.float32) -> not set"],
    ),
    "functorch's": (
        put("configs", "functorch", "activation_memory_budget", 0.5),
        ["functorch.activation_memory_budget: 1.0 -> 0.5"],
    ),
    "the tag": (put("configs", "tag", "cache_key_tag", "v2"), ["torch.compiler.config.cache_key_tag: '' -> 'v2'"]),
    # ---- environment
    "python": (
        put("environment", "python", "cpython-312-3.12.1"),
        ["python: cpython-311-3.11.7 -> cpython-312-3.12.1"],
    ),
    "torch": (
        put("environment", "torch", "2.15.0+cpu fedcba9876543210"),
        ["torch: 2.13.0+cpu (git 0123456789) -> 2.15.0+cpu (git fedcba9876)"],
    ),
    "triton": (put("environment", "triton", "3.6.0"), ["triton: none -> 3.6.0"]),
    "the CPU": (put("environment", "cpu", "AVX512 fedcba9876543210"), ["cpu: AVX2 -> AVX512  (the instruction sets"]),
    "the compiler": (
        put("environment", "compiler", "clang++ /usr/bin/clang-17 99 1750000000"),
        ["compiler: g++ (/usr/bin/g++-12 of 2023-11-14) -> clang++ (/usr/bin/clang-17 of 2025-06-15)"],
    ),
    "a compiler with another size": (
        put("environment", "compiler", "g++ /usr/bin/g++-12 99 1700000000"),
        ["compiler: g++ /usr/bin/g++-12 1234567 1700000000 -> g++ /usr/bin/g++-12 99 1700000000"],
    ),
    "a variable": (put("environment", "variables", "CPATH", "/b"), ["variable CPATH: '/a' -> '/b'"]),
    "a variable that is new": (put("environment", "variables", "TRITON_X", "1"), ["variable TRITON_X: not set -> '1'"]),
    "a GPU": (put("environment", "gpu", ["H200", 9, 0, 132]), ["gpu: none -> H200, 9, 0, 132"]),
    "the order of fields": (
        lambda program: program.update(modes=dict(reversed(program["modes"].items()))),
        ["the order of its fields: one -> another"],
    ),
    # ---- parts that are not in the key
    "sizes and sources": (everything(put("hints", [9]), put("about", {})), []),
}


@pytest.mark.parametrize("what", CASES)
def test_change_is_described_in_words(what: str) -> None:
    change, expected = CASES[what]
    after = changed(change)
    found = [str(item) for item in difference.compare(PROGRAM, after)]
    assert len(found) == len(expected), found
    assert all(part in text for part, text in zip(expected, found, strict=True)), found
    backwards = difference.compare(after, PROGRAM)
    assert len(backwards) == len(expected)
    sections = {item.section for item in backwards}
    assert sections == {name for name in SECTIONS if json.dumps(PROGRAM[name]) != json.dumps(after[name])}
    assert (difference.distance(PROGRAM, after)[0] == 0) == (not expected)


def test_every_section_of_the_key_is_compared() -> None:
    from precompiled.graph import capture

    assert set(difference._COMPARERS) == set(SECTIONS) and capture.SECTIONS == SECTIONS


def test_every_mode_names_the_api_that_sets_it() -> None:
    from precompiled.torch_internals.graph import ambient_modes

    captured = ambient_modes.read(uses_cpu=True)
    assert {*captured, "groups", "ranks"} == set(mode_names.SET_BY)
    lists = {name: len(value) for name, value in captured.items() if isinstance(value, list)}
    assert {name: len(parts) for name, parts in mode_names.PARTS.items()} == lists
    places = tuple(".".join(place) for place in ambient_modes._PRECISION_PLACES)
    assert mode_names.PARTS["fp32_precision"] == places


def test_change_is_shown_with_its_source_line() -> None:
    (constant,) = difference.compare(PROGRAM, changed(put(*NODES, 2, 2, 1, 3)))
    assert constant.source == "/home/me/model.py:12, in forward: return x * 2 + y"
    (shape,) = difference.compare(PROGRAM, changed(put(*ARGS, 1, "device", "meta")))
    assert shape.source == "self.y"


@pytest.mark.parametrize(
    "about",
    [
        None,
        [],
        "x",
        {"nodes": [[0]]},
        {"nodes": [[0] * 5], "places": []},
        {"nodes": [[0] * 5], "places": [["f", 1]]},
        {"nodes": [["x"] * 5], "places": [1], "inputs": {}},
    ],
)
def test_malformed_source_places_are_omitted(about: Any) -> None:
    after = changed(everything(put(*NODES, 2, 2, 1, 3), put("about", about)))
    (change,) = difference.compare(changed(put("about", about)), after)
    assert change.source == ""
    assert all(item.place is None for item in listing.operations(after))


def test_long_values_are_shortened_around_the_difference() -> None:
    before, after = ([*range(5000)], [*range(4000), 1.5, *range(4001, 5000)])
    (change,) = difference.compare(changed(put(*NODES, 2, 2, 1, before)), changed(put(*NODES, 2, 2, 1, after)))
    assert " 4000," in change.before and " 1.5," in change.after and len(str(change)) < 1000


def test_changed_sources_of_a_custom_operator_are_named() -> None:
    one, other = (changed(put(*NODES, 2, 1, ["cop", "mine", "op", "", "mine.ops", digest])) for digest in ("d1", "d2"))
    (change,) = difference.compare(one, other)
    assert "whose sources have changed" in change.note and change.before == "mine.op.default(%0, 2)"


def test_changes_of_a_tensor_subclass_are_described() -> None:
    one = changed(put(*ARGS, 0, SUBCLASS))
    for path, text in (
        (("subclass", 1, "Thrice"), "input 0: type mine.tensors.Twice -> mine.tensors.Thrice"),
        (("subclass", 2, "d2"), "input 0: sources of mine.tensors.Twice -> mine.tensors.Twice"),
        (("context", {"t": [2]}), "input 0: context (1,) -> (2,)"),
        (("inner", 0, 1, "dtype", "int8"), "input 0: a's dtype float32 -> int8"),
    ):
        other = copy.deepcopy(one)
        put(*ARGS, 0, *path)(other)
        assert text in [str(change) for change in difference.compare(one, other)]


def test_changes_of_an_opaque_object_are_described() -> None:
    one = changed(put(*ARGS, 0, {"opaque": ["mine.layers", "Name", "d1"]}))
    for at, value, text in (
        (1, "Other", "input 0: type mine.layers.Name -> mine.layers.Other"),
        (2, "d2", "input 0: sources of mine.layers.Name -> mine.layers.Name"),
    ):
        other = copy.deepcopy(one)
        put(*ARGS, 0, "opaque", at, value)(other)
        assert text in [str(change) for change in difference.compare(one, other)]


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("value", [None, [], {}, "x", 1, [[["f", ["fn"]]]], [[None]], {"args": [{}], "ranges": [1]}])
def test_malformed_program_raises_a_documented_exception(section: str, value: Any) -> None:
    odd = changed(put(section, value))
    for pair in ((PROGRAM, odd), (odd, PROGRAM)):
        try:
            difference.compare(*pair)
        except listing.NOT_A_PROGRAM:
            continue


def test_distance_counts_sections_first_then_fields() -> None:
    near = changed(put(*NODES, 2, 2, 1, 3))
    further = changed(everything(put(*NODES, 2, 2, 1, 3), put(*NODES, 3, 3, 0, 1, 4)))
    furthest = changed(everything(put(*NODES, 2, 2, 1, 3), put("modes", "grad", False)))
    found = [difference.distance(PROGRAM, program) for program in (PROGRAM, near, further, furthest)]
    assert found == sorted(found) and len(set(found)) == 4


def test_listing_shows_each_operation_with_its_place() -> None:
    texts = [item.text for item in listing.operations(PROGRAM)]
    assert texts == [
        "%0 = input 0: float32 [8, 16]  x",
        "%1 = input 1: float32 [8, 16]  self.y",
        "%2 = operator.mul(%0, 2)",
        "%3 = %2.add(%1, alpha=2)",
        "output((%3,))",
    ]
    assert listing.operations(PROGRAM)[2].place == listing.Place("/home/me/model.py", 12, "forward", "return x * 2 + y")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (1, "1"),
        (0.5, "0.5"),
        ("a", "'a'"),
        ([1, {"n": 3}], "[1, %3]"),
        ({"t": [1]}, "(1,)"),
        ({"t": [1, 2]}, "(1, 2)"),
        ({"d": [["a", 1]]}, "{'a': 1}"),
        ({"s": [None, 2, None]}, ":2"),
        ({"s": [1, None, 2]}, "1::2"),
        ({"z": [2, 3]}, "torch.Size(2, 3)"),
        ({"r": [0, 4, 1]}, "range(0, 4, 1)"),
        ({"e": 0}, "..."),
        ({"c": [0.0, 1.0]}, "1j"),
        ({"x": ["dtype", "float32"]}, "torch.float32"),
        ({"x": ["device", "cuda:0"]}, "device('cuda:0')"),
        ({"x": ["layout", "strided"]}, "torch.strided"),
    ],
)
def test_argument_is_printed_as_python(value: Any, text: str) -> None:
    assert listing.argument(value) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (["fn", "torch.nn.functional", "gelu"], "torch.nn.functional.gelu"),
        (["op", "aten", "add"], "aten.add"),
        (["op", "aten", "add", "Tensor"], "aten.add.Tensor"),
        (["op", "aten", "relu", ""], "aten.relu.default"),
        (["cop", "mine", "op", "", "mine.ops", "d"], "mine.op.default"),
        (["hop", "cond"], "cond"),
        (["kernel", "triton_kernel_wrapper_mutation", ["mine", "k", "d"], "f", [["B", 16]]], "mine.k[grid]"),
    ],
)
def test_target_is_printed_by_its_name(name: list[str], text: str) -> None:
    assert listing.target(name) == text


def test_kernel_launch_shows_its_compile_time_constants() -> None:
    constants = [["B", 16], ["T", {"x": ["tl", "fp32"]}]]
    target = ["kernel", "triton_kernel_wrapper_mutation", ["mine", "k", "d"], "f", constants]
    launch = ["f", target, [], [["kwargs", {"d": [["x", {"n": 0}]]}]]]
    assert listing.operation(launch) == "mine.k[grid](kwargs={'x': %0}, B=16, T=tl.fp32)"


def test_difference_does_not_import_torch() -> None:
    code = "import sys, precompiled.graph.difference, precompiled.cli.explain; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
