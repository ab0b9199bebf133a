"""Tests of the causes of a miss, in words. The causes are found by a comparison of two programs, given as
plain data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support_programs import ARGS, NODES, PROGRAM, TENSOR, changed, everything, put

from precompiled.graph import causes, difference
from precompiled.graph.advice import Cause
from precompiled.graph.listing import Place

CALLS = put("about", "calls", [["/home/me/train.py", 31, "main", "model(x)"], ["/home/me/train.py", 40, "f", "main()"]])
CALLED = "called at /home/me/train.py:31, in main: model(x)"
EDITED = put("about", "places", [["/home/me/model.py", 12, "forward", "return x * 3 + y"]])
BRANCH = put("about", "places", [["/home/me/model.py", 14, "forward", "return x * 3"]])


def of(change: Callable[[dict[str, Any]], Any]) -> list[Cause]:
    after = changed(everything(change, CALLS))
    return causes.causes(PROGRAM, after, difference.compare(PROGRAM, after))


@pytest.mark.parametrize(
    ("change", "kind", "short", "what", "line"),
    [
        (put(*ARGS, 1, "shape", [12, 16]), "size", "new size", "self.y: shape [8, 16] -> [12, 16]", CALLED),
        # A parameter has a kind of its own, because the advice to mark its size as dynamic would be wrong.
        (
            everything(put(*ARGS, 1, "parameter", True), put(*ARGS, 1, "shape", [12, 16])),
            "parameter",
            "new size of the model",
            "self.y: shape [8, 16] -> [12, 16]",
            CALLED,
        ),
        (put(*ARGS, 0, "dtype", "bfloat16"), "dtype", "new dtype", "x: dtype float32 -> bfloat16", CALLED),
        (put(*ARGS, 0, "requires_grad", True), "input", "other input", "x: requires_grad False -> True", CALLED),
        (
            put("inputs", "ranges", 0, [2, 64]),
            "range",
            "new range of a size",
            "range of the size s0: 2 to any -> 2 to 64",
            CALLED,
        ),
        # The changed size also occurs as a constant of the graph, which must not count as a second cause.
        (
            everything(put(*ARGS, 0, "shape", [12, 16]), put(*NODES, 2, 2, 1, 12)),
            "size",
            "new size",
            "[12, 16]",
            CALLED,
        ),
        (
            everything(put(*NODES, 2, 2, 1, 3), EDITED),
            "edit",
            "edit at model.py:12",
            "'return x * 2 + y' -> 'return x * 3 + y'",
            "/home/me/model.py:12, in forward",
        ),
        # The program has taken a different branch: no line has changed, but the operation comes from a different line.
        (
            everything(put(*NODES, 2, 2, 1, 3), BRANCH),
            "way",
            "other branch at model.py:14",
            "'return x * 3' ran, where model.py:12 ran before: 'return x * 2 + y'",
            "/home/me/model.py:14, in forward",
        ),
        (
            put(*NODES, 2, 2, 1, 3),
            "value",
            "other value at model.py:12",
            "operator.mul(%0, 2) -> operator.mul(%0, 3)",
            "/home/me/model.py:12",
        ),
        # The line is the same, but its operation differs, for example because the line calls an activation that is an
        # attribute of the module. There is no number that the advice could turn into a tensor.
        (
            put(*NODES, 2, ["m", "sin", [{"n": 0}], []]),
            "operation",
            "other operation at model.py:12",
            "operator.mul(%0, 2) -> %0.sin()",
            "/home/me/model.py:12",
        ),
        (put("modes", "grad", False), "mode", "grad mode", "True -> False", CALLED),
        (
            everything(put("modes", "autocast", {"cpu": "float16"}), put("modes", "autocast_dtypes", "cpu", "float16")),
            "mode",
            "autocast (cpu)",
            "off -> float16",
            CALLED,
        ),
        (
            put("modes", "autocast_dtypes", "cpu", "float16"),
            "mode",
            "autocast dtypes (cpu)",
            "bfloat16 -> float16",
            CALLED,
        ),
        (
            everything(
                put("configs", "inductor", "max_fusion_size", 7),
                put("about", "set", {"inductor.max_fusion_size": "options"}),
            ),
            "setting",
            "setting inductor.max_fusion_size",
            "64 -> 7 (by mode= or options= of torch.compile)",
            "",
        ),
        (
            everything(put("environment", "variables", "TORCHINDUCTOR_X", "1"), put("configs", "inductor", "x", True)),
            "variable",
            "variable TORCHINDUCTOR_X",
            "not set -> '1' (since the start of the process)",
            "",
        ),
        (put("environment", "torch", "2.15.0+cpu fedcba9876543210"), "version", "another torch", "-> 2.15.0+cpu", ""),
        (
            put("environment", "compiler", "clang++ /usr/bin/clang-17 99 1750000000"),
            "compiler",
            "another C++ compiler",
            "clang++ (/usr/bin/clang-17",
            "",
        ),
        (put("environment", "cpu", "AVX512 fedcba9876543210"), "cpu", "another CPU", "AVX2 -> AVX512", ""),
        (put("modes", dict(reversed(PROGRAM["modes"].items()))), "mode", "the order of its fields", "", CALLED),
    ],
)
def test_change_has_one_cause_with_its_line(
    change: Callable[[dict[str, Any]], Any], kind: str, short: str, what: str, line: str
) -> None:
    (found,) = of(change)
    assert (found.kind, found.short) == (kind, short) and what in found.what and line in found.line, found
    assert bool(line) == bool(found.line) and found.advice


def test_operations_shifted_by_a_missing_input_are_not_a_different_branch() -> None:
    """Evaluation has one input less than training, which shifts all operations. A comparison of shifted operations must
    not report a different branch.
    """
    lines = [["/home/me/model.py", number, "forward", f"line {number}"] for number in (12, 13)]

    def graph(*nodes: str) -> Callable[[dict[str, Any]], Any]:
        made = [["p"], *([["p"]] if len(nodes) > 2 else []), *(["m", name, [{"n": 0}], []] for name in nodes[:2])]
        places = [-1, *([-1] if len(nodes) > 2 else []), 0, 1, -1]
        return everything(
            put("graph", [[*made, ["o", None, [{"n": len(made) - 1}], []]]]),
            put("about", {"places": lines, "nodes": [places]}),
            CALLS,
        )

    without_gradients = everything(graph("sin", "cos"), put("modes", "grad", False))
    before, after = changed(graph("sin", "cos", "more")), changed(without_gradients)
    found = causes.causes(before, after, difference.compare(before, after))
    assert [cause.kind for cause in found if cause.kind in ("way", "mode")] == ["mode"], found


def test_difference_without_a_line_is_not_called_an_edit() -> None:
    constant = put(*NODES, 2, 2, 1, 3)
    one, other = (changed(everything(change, put("about", {}))) for change in (put("hints", [9]), constant))
    (found,) = causes.causes(one, other, difference.compare(one, other))
    assert (found.kind, found.short, found.line) == ("operation", "other operation", "")
    assert found.what == "operator.mul(%0, 2) -> operator.mul(%0, 3)"


def test_functions_of_one_name_in_two_files_are_not_an_edit() -> None:
    """Two modules of a transformer may each have a function `forward`, in installed files that were not edited. A
    different depth of the model must not be reported as an edit of these files.
    """
    places = [
        ["/env/site-packages/a.py", 7, "forward", "x = x.view(y)"],
        ["/env/site-packages/b.py", 9, "forward", "x = torch.addmm(x)"],
    ]
    nodes = [[-1, -1, 0, 0, -1]]

    def at(which: int) -> Callable[[dict[str, Any]], Any]:
        numbers = [[number if number < 0 else which for number in graph] for graph in nodes]
        return put("about", {"places": places, "nodes": numbers})

    before, after = changed(at(0)), changed(everything(put(*NODES, 2, ["m", "sin", [{"n": 0}], []]), at(1)))
    found = causes.causes(before, after, difference.compare(before, after))
    assert [(cause.kind, cause.short) for cause in found] == [("way", "other branch at b.py:9")]


def test_edited_notebook_cell_is_an_edit_without_a_file_name() -> None:
    def cell(number: int, code: str) -> Callable[[dict[str, Any]], Any]:
        return put("about", "places", [[f"/tmp/ipykernel_7/{number}.py", 4, "scaled", code]])

    before = changed(cell(123, "return x * 2"))
    after = changed(everything(cell(456, "return x * 3"), put(*NODES, 2, 2, 1, 3)))
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert found.short == "edit at line 4 of a cell" and found.what == "'return x * 2' -> 'return x * 3'"


def test_all_of_several_causes_are_named() -> None:
    found = of(everything(put("modes", "grad", False), put(*ARGS, 0, "shape", [12, 16])))
    assert [cause.short for cause in found] == ["grad mode", "new size"]


def test_an_edit_and_a_new_size_are_both_named() -> None:
    found = of(everything(put(*NODES, 2, 2, 1, 3), EDITED, put(*ARGS, 1, "shape", [12, 16])))
    assert [cause.short for cause in found] == ["edit at model.py:12", "new size"]


def _with_a_third_input(name: str, **extra: object) -> Callable[[dict[str, Any]], Any]:
    """A third input before the others, which shifts all operations."""

    def change(program: dict[str, Any]) -> None:
        program["graph"][0].insert(0, ["p"])
        for node in program["graph"][0][3:]:
            node[2] = json.loads(re.sub(r'{"n": (\d+)}', lambda n: f'{{"n": {int(n[1]) + 1}}}', json.dumps(node[2])))
        program["inputs"]["args"].insert(0, {**TENSOR, **extra})
        program["about"]["nodes"][0].insert(0, -1)
        program["about"]["inputs"].insert(0, name)

    return change


def test_an_edit_is_named_although_other_inputs_shift_the_operations() -> None:
    (found,) = of(everything(put(*NODES, 2, 2, 1, 3), EDITED, _with_a_third_input("z")))
    assert (found.short, found.what) == ("edit at model.py:12", "'return x * 2 + y' -> 'return x * 3 + y'")
    more = everything(_with_a_third_input("self.w", parameter=True), put(*ARGS, 2, "parameter", True))
    before = changed(put(*ARGS, 1, "parameter", True))
    after = changed(everything(more, EDITED, put(*NODES, 3, 2, 1, 3), CALLS))
    found = causes.causes(before, after, difference.compare(before, after))
    assert [(cause.short, cause.what) for cause in found] == [
        ("edit at model.py:12", "'return x * 2 + y' -> 'return x * 3 + y'"),
        ("another model", "1 more parameter: self.w; 5 -> 6 operations"),
    ]
    (_, value) = causes.by_guard(found, "self.n", "2", "3", "")
    assert (value.short, value.what) == ("other value of self.n", "2 -> 3; 1 more parameter: self.w; 5 -> 6 operations")


def _model(layers: int, size: int, *operators: str, main: str = "train.py") -> dict[str, Any]:
    """A graph of a model with this many layers, for a batch of this size. Each layer calls all operators."""
    names = ["x", *(f"self.h.{layer}.weight" for layer in range(layers))]
    calls = [["m", name, [{"n": 0}], []] for _ in range(layers) for name in operators]
    parameters: list[dict[str, Any]] = [{**TENSOR, "parameter": True}] * layers
    nodes = [*(["p"] for _ in names), *calls, ["o", None, [{"n": 0}], []]]
    return changed(
        everything(
            put("graph", [nodes]),
            put("inputs", "args", [{**TENSOR, "shape": [size, 16]}, *parameters]),
            put("about", {"inputs": names, "calls": [[f"/home/me/{main}", 31, "main", "model(x)"]]}),
        )
    )


@pytest.mark.parametrize("size", [1, 12])  # 1 is a size that torch compiles separately
def test_a_size_is_not_the_cause_if_the_models_differ(size: int) -> None:
    """A dynamic size would not let one artifact serve two models, so the advice must not name it."""
    before, after = _model(3, 8, "sin", "cos"), _model(1, size, "sin", "cos", main="api.py")
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert (found.kind, found.short) == ("model", "another model") and "dynamic" not in found.advice
    assert found.what == "2 fewer parameters: self.h.*; 11 -> 5 operations; the nearest graph is of train.py"
    assert found.line.startswith("called at /home/me/api.py:31") and causes.may_follow_from_a_value(found)
    without_grad = {**after, "modes": {**after["modes"], "grad": False}}
    both = causes.causes(before, without_grad, difference.compare(before, without_grad))
    assert [cause.short for cause in both] == ["another model", "grad mode"]
    for parameter in after["inputs"]["args"][1:]:  # all parameters have another size, too
        parameter["shape"] = [16, size]
    (both,) = causes.causes(before, after, difference.compare(before, after))
    assert both.what == f"{found.what}; also self.h.0.weight: shape [8, 16] -> [16, {size}]"


@pytest.mark.parametrize("held", [{"parameter": True}, {"flags": {"_dynamo_static_input_type": "unguarded"}}])
@pytest.mark.parametrize("size", [1, 12, {"s": 0}])
def test_the_size_of_a_model_is_not_advised_to_be_dynamic(held: dict[str, Any], size: Any) -> None:
    """torch raises an error for mark_dynamic of an input's size that depends on a parameter's or a buffer's size."""
    model = [put(*ARGS, 1, name, value) for name, value in held.items()]
    before = changed(everything(*model))
    after = changed(everything(*model, put(*ARGS, 0, "shape", [size, 24]), put(*ARGS, 1, "shape", [8, 24]), CALLS))
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert (found.kind, found.short) == ("parameter", "new size of the model") and "dynamic" not in found.advice
    shown = "s0" if isinstance(size, dict) else size
    assert found.what == f"self.y: shape [8, 16] -> [8, 24]; also x: shape [8, 16] -> [{shown}, 24]"


def test_a_size_is_not_the_cause_if_the_operations_differ() -> None:
    before, after = _model(2, 8, "sin"), _model(2, 12, "tanh")
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert (found.kind, found.short) == ("operations", "other operations") and "dynamic" not in found.advice
    assert found.what == "sin: 2 -> 0, tanh: 0 -> 2; also x: shape [8, 16] -> [12, 16]"
    (value,) = causes.by_guard([found], "self.n", "2", "3", "")
    assert value.what.startswith("2 -> 3; ") and value.what.endswith("also x: shape [8, 16] -> [12, 16]")
    same = _model(2, 12, "sin", main="api.py")
    (found,) = causes.causes(before, same, difference.compare(before, same))
    assert found.short == "new size" and "mark_dynamic" in found.advice


def test_other_names_of_the_same_parameters_are_not_another_model() -> None:
    before, after = _model(2, 8, "sin"), _model(2, 12, "sin")
    after["about"]["inputs"] = ["x", "model.h.0.weight", "model.h.1.weight"]
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert found.short == "new size"


def test_other_lines_with_another_input_are_the_cause_if_an_edit_may_have_shifted_them() -> None:
    """An edit above the function and a different branch of the program look alike, so the advice names both."""
    moved = put("about", "places", [["/home/me/model.py", 14, "forward", "return x * 3 + y + z"]])
    (found,) = of(everything(put(*NODES, 2, 2, 1, 3), moved, _with_a_third_input("z")))
    assert (found.kind, found.short) == ("way", "other branch at model.py:14")
    assert found.what == "'return x * 3 + y + z' ran, where model.py:12 ran before: 'return x * 2 + y'"
    assert "if you edited the code" in found.advice
    assert causes.by_edit([found], []) == [found]
    (of_value,) = causes.by_edit([found], ["/home/me/other.py"])
    assert (of_value.kind, of_value.short) == ("way", found.short)
    assert of_value.what == f"{found.what} (this may follow from an edit: other.py differs from the previous run)"
    (edit,) = causes.by_edit([found], ["/home/me/model.py"])
    assert (edit.kind, edit.short, edit.line) == ("edit", "edit at model.py:14", found.line)
    assert edit.what == "'return x * 2 + y' -> 'return x * 3 + y + z'"
    assert (edit.old_line, edit.new_line) == (found.old_line, found.new_line)


def test_code_with_the_words_of_a_cause_is_quoted_whole_in_an_edit() -> None:
    texts = ["log('a ran, where b ran before: c')", "log('d -> e ran, where f')"]
    old, new = (Place("/home/me/model.py", 12 + number, "forward", text) for number, text in enumerate(texts))
    found = Cause("way", "other branch at model.py:13", "any text", new.where, old_line=old, new_line=new)
    (edit,) = causes.by_edit([found], ["/home/me/model.py"])
    assert edit.what == " -> ".join(map(repr, texts))


def test_a_size_that_dynamo_made_dynamic_is_not_called_a_requested_range() -> None:
    """Dynamo adds the size as an input, so all later inputs shift. y's shape must not be compared with x's."""
    size = everything(
        _with_a_third_input("x.size()[0]"),
        put(*ARGS, 0, {"size": {"s": 0}}),
        put(*ARGS, 1, "shape", [{"s": 0}, 16]),
    )
    before = changed(everything(put("inputs", "ranges", []), put(*ARGS, 1, "shape", [4, 16])))
    after = changed(everything(put(*ARGS, 1, "shape", [4, 16]), size, CALLS))
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert (found.short, found.what) == (
        "size became dynamic",
        "x: shape [8, 16] -> [s0, 16], for sizes from 2 to any",
    )
    assert "mark_dynamic" in found.advice and "min=" not in found.advice
    (back,) = causes.causes(after, before, difference.compare(after, before))
    assert (back.short, back.what) == ("size became fixed", "x: shape [s0, 16] -> [8, 16]")


def test_a_number_that_dynamo_made_dynamic_is_not_called_a_size() -> None:
    """mark_dynamic does not apply to an int argument, so the advice must not name it."""
    number = everything(_with_a_third_input("n"), put(*ARGS, 0, {"size": {"s": 0}}))
    before = changed(put("inputs", "ranges", []))
    after = changed(everything(number, CALLS))
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert (found.kind, found.short) == ("number", "number became dynamic")
    assert found.what == "n: a constant -> any number" and found.line == CALLED
    assert "dynamic=True" in found.advice and "mark_dynamic" not in found.advice
    (back,) = causes.causes(after, before, difference.compare(after, before))
    assert (back.short, back.what) == ("number became fixed", "n: any number -> a constant")


@pytest.mark.parametrize("shape", [[1, 16], [0, 16]])
def test_sizes_0_and_1_are_not_advised_to_be_dynamic(shape: list[int]) -> None:
    (found,) = of(put(*ARGS, 1, "shape", shape))
    assert found.short == "new size" and "0 and 1 separately from other sizes, even after mark_dynamic" in found.advice


@pytest.mark.parametrize(
    ("before", "after"),
    [([1, {"s": 0}, 32], [{"s": 0}, 1, 32]), ([{"s": 0}, {"s": 1}], [1, 8]), ([2, 8], [1, {"s": 0}])],
)
def test_a_new_size_of_0_or_1_has_their_advice_beside_dynamic_sizes(before: list[Any], after: list[Any]) -> None:
    """mark_dynamic and dynamic=True would not help, because torch compiles these sizes separately."""
    one, other = (changed(everything(put(*ARGS, 0, "shape", shape), CALLS)) for shape in (before, after))
    (found,) = causes.causes(one, other, difference.compare(one, other))
    assert found.kind == "small" and "even after mark_dynamic" in found.advice, found


@pytest.mark.parametrize("first", [0, 1])
def test_dynamic_size_after_a_first_call_with_size_0_or_1_has_their_advice(first: int) -> None:
    """mark_dynamic before the first call would not help, because torch compiles these sizes separately."""
    operators = ("sin",), ("sin", "cos")  # a dynamic size adds operations
    before, after = (_model(2, first, *names) for names in operators)
    after["inputs"]["args"][0]["shape"] = [{"s": 0}, 16]
    for one, other, short in ((before, after, "size became dynamic"), (after, before, "size became fixed")):
        (found,) = causes.causes(one, other, difference.compare(one, other))
        assert (found.kind, found.short) == ("small", short) and "even after mark_dynamic" in found.advice
    assert f"x: shape [s0, 16] -> [{first}, 16]" in found.what
    two = _model(2, first, "sin")
    two["inputs"]["args"][0]["shape"] = [first, 8]
    after["inputs"]["args"][0]["shape"] = [{"s": 0}, {"s": 1}]
    (found,) = causes.causes(two, after, difference.compare(two, after))
    assert found.kind == "dynamic", "mark_dynamic helps for the size 8"


def test_custom_operator_with_changed_sources_is_the_cause() -> None:
    one, other = (changed(put(*NODES, 2, 1, ["cop", "mine", "op", "", "mine.ops", digest])) for digest in ("d1", "d2"))
    (found,) = causes.causes(one, other, difference.compare(one, other))
    assert (found.kind, found.short) == ("operator", "custom operator mine.op.default") and "model.py:12" in found.line


def test_instruction_sets_that_differ_are_named() -> None:
    def flags(text: str) -> Callable[[dict[str, Any]], Any]:
        return put("about", "cpu", {"model": "a CPU", "flags": text})

    before = changed(flags("avx avx2 amx_tile"))
    after = changed(everything(flags("avx avx2 avx512f"), put("environment", "cpu", "AVX512 1")))
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert "instruction sets only then: amx_tile; only now: avx512f" in found.what
    same = changed(everything(flags("avx avx2 amx_tile"), put("environment", "cpu", "DEFAULT 0123456789abcdef")))
    (found,) = causes.causes(before, same, difference.compare(before, same))
    assert "ATEN_CPU_CAPABILITY" in found.what


def test_different_graph_is_not_a_version_of_the_same_graph() -> None:
    other = changed(
        everything(
            put("graph", [[["p"], ["m", "sin", [{"n": 0}], []], ["o", None, [{"n": 1}], []]]]),
            put("about", {"places": [["/home/me/other.py", 3, "g", "x.sin()"]], "nodes": [[-1, 0, -1]]}),
        )
    )
    assert not causes.is_version_of("f [0/0]", PROGRAM, "g [0/0]", other)
    assert not causes.is_version_of("f [0/0]", PROGRAM, "f [0/0]", other)  # the same name in another file
    assert not causes.is_version_of("f [0/0]", PROGRAM, "f [1/0]", other)
    elsewhere = changed(put("about", "places", [["/home/me/other.py", 12, "forward", "return x * 2 + y"]]))
    assert not causes.is_version_of("f [0/0]", PROGRAM, "f [0/0]", elsewhere)  # equal except for its file
    assert causes.new(PROGRAM, elsewhere).what == "the store had no graph of its file; the nearest graph is of other.py"
    assert causes.new(PROGRAM, other).what == "the store had no graph of its file"
    edited = changed(everything(put(*NODES, 2, ["m", "sin", [{"n": 0}], []]), EDITED))
    assert causes.is_version_of("f [0/0]", PROGRAM, "f [0/1]", edited)
    assert causes.is_version_of("f [0/0]", PROGRAM, "f [7/0]", PROGRAM)
    assert causes.new(PROGRAM).line == "/home/me/model.py:12, in forward: return x * 2 + y"


def test_a_graph_of_another_program_is_a_version_only_if_it_is_nearly_equal() -> None:
    other_calls = put("about", "calls", [["/home/me/other.py", 5, "main", "net(x)"]])
    mine = changed(everything(CALLS, put(*ARGS, 0, "shape", [12, 16])))
    theirs = changed(other_calls)
    assert causes.is_version_of("forward [0/0]", mine, "forward [0/0]", theirs)  # two scripts share one model
    assert not causes.is_version_of("forward [0/0]", mine, "other [0/0]", theirs)
    longer = changed(everything(other_calls, put(*NODES, 3, ["m", "sin", [{"n": 2}], []])))
    assert not causes.is_version_of("forward [0/0]", mine, "forward [0/0]", longer)
    assert causes.is_version_of(
        "forward [0/0]", mine, "forward [0/0]", changed(put(*NODES, 3, ["m", "sin", [{"n": 2}], []]))
    )
    without_lines = [changed(everything(calls, put("about", "places", []))) for calls in (CALLS, other_calls)]
    assert not causes.is_version_of("forward [0/0]", without_lines[0], "forward [0/0]", without_lines[1])


def test_a_graph_of_a_file_is_not_a_version_of_a_graph_of_a_notebook() -> None:
    cells = [changed(put("about", "places", [[f"/tmp/ipykernel_7/{n}.py", 4, "f", "return x * 2"]])) for n in (1, 2)]
    assert causes.are_of_other_files(PROGRAM, cells[0]) and not causes.are_of_other_files(*cells)
    assert not causes.is_version_of("<lambda> [0/0]", PROGRAM, "<lambda> [0/0]", cells[0])
    assert causes.is_version_of("<lambda> [0/0]", cells[1], "<lambda> [0/0]", cells[0])
    for number, cell in enumerate(cells):
        cell["about"]["calls"] = [[f"/tmp/ipykernel_7/{number}5.py", 1, "<module>", "f(x)"]]
    assert not causes.are_of_other_programs(*cells)


def test_advice_for_a_mode_of_the_process_names_what_sets_it() -> None:
    after = changed(put("modes", "threads", 1))
    (found,) = causes.causes(PROGRAM, after, difference.compare(PROGRAM, after))
    assert "OMP_NUM_THREADS" in found.advice
    one_part = changed(put("modes", "fp32_precision", ["none"] * 8 + ["tf32"]))
    other = changed(put("modes", "fp32_precision", ["none"] * 9))
    (found,) = causes.causes(other, one_part, difference.compare(other, one_part))
    assert found.short == "fp32 precision (mkldnn.rnn)" and "torch.backends.*.fp32_precision" in found.advice
    set_together = changed(
        everything(put("modes", "fp32_precision", ["none"] * 9), put("modes", "float32_matmul_precision", "high"))
    )
    set_together["modes"]["fp32_precision"][2] = "tf32"
    (found,) = causes.causes(other, set_together, difference.compare(other, set_together))
    assert found.short == "float32 matmul precision"
    after = changed(put("modes", "grad", False))
    (found,) = causes.causes(PROGRAM, after, difference.compare(PROGRAM, after))
    assert "in the same mode" in found.advice


def test_an_installed_library_in_two_environments_is_one_file() -> None:
    def installed(environment: str, code: str) -> Callable[[dict[str, Any]], Any]:
        return put("about", "places", [[f"{environment}/lib/python3.11/site-packages/nets/model.py", 12, "f", code]])

    before = changed(installed("/old/venv", "return x * 2 + y"))
    after = changed(everything(installed("/new/venv", "return x * 2 + y"), put(*ARGS, 0, "dtype", "bfloat16")))
    assert causes.is_version_of("f [0/0]", after, "f [0/0]", before)
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert found.short == "new dtype"
    upgraded = changed(everything(installed("/new/venv", "return x * 3 + y"), put(*NODES, 2, 2, 1, 3)))
    (found,) = causes.causes(before, upgraded, difference.compare(before, upgraded))
    assert found.short == "edit at model.py:12" and "precompiled watch" not in found.advice


def test_a_cause_is_plain_data() -> None:
    (found,) = of(put("modes", "grad", False))
    assert json.loads(json.dumps(vars(found))) == vars(found)


def test_a_flag_gets_no_advice_for_numbers() -> None:
    """For example, the argument ``training`` of a model's dropout differs after train() and after eval()."""
    before = changed(everything(put(*NODES, 2, 2, 1, True), CALLS))
    after = changed(everything(put(*NODES, 2, 2, 1, False), CALLS))
    (cause,) = causes.causes(before, after, difference.compare(before, after))
    assert cause.what == "operator.mul(%0, True) -> operator.mul(%0, False)"
    assert "each value is compiled once" in cause.advice and "tensor" not in cause.advice


def test_a_flag_that_changes_together_with_a_number_gets_no_advice_for_numbers() -> None:
    """The probability and the flag of dropout both change after eval(), and dropout accepts no tensor for them."""
    before = changed(everything(put(*NODES, 2, ["f", ["fn", "f", "dropout"], [{"n": 0}, 0.1, False], []]), CALLS))
    after = changed(everything(put(*NODES, 2, ["f", ["fn", "f", "dropout"], [{"n": 0}, 0.0, True], []]), CALLS))
    (cause,) = causes.causes(before, after, difference.compare(before, after))
    assert cause.what == "f.dropout(%0, 0.1, False) -> f.dropout(%0, 0.0, True)"
    assert cause.kind == "flag" and "tensor" not in cause.advice


def test_a_value_that_became_any_value_is_not_advised_to_have_an_artifact_for_each() -> None:
    found = [Cause("operations", "other operations", "sin: 1 -> 2")]
    for after, kind in (("any float", "any"), ("2.0", "guard"), ("'any'", "guard")):
        (cause,) = causes.by_guard(found, "scale", "1.0", after, "")
        assert (cause.kind, cause.what) == (kind, f"1.0 -> {after}; sin: 1 -> 2")
        assert ("each value" in cause.advice) is (kind == "guard")
        assert "the next run" not in cause.advise(is_served=False)


def _piece(function: str, caller: str, *lines: tuple[int, str], head: bool = True) -> dict[str, Any]:
    """A graph of one operation for each line. ``caller``: the text of the line of the graph break."""
    names = ["x", *(["self.head.weight"] if head else [])]
    parameters: list[dict[str, Any]] = [{**TENSOR, "parameter": True}] * (len(names) - 1)
    nodes = [*(["p"] for _ in names), *(["m", code, [{"n": 0}], []] for _number, code in lines), ["o", None, [], []]]
    line = int(function.rpartition("_")[2]) if function != "forward" else 1
    about = {
        "inputs": names,
        "places": [["/home/me/multi.py", number, function, code] for number, code in lines],
        "nodes": [[*(-1 for _ in names), *range(len(lines)), -1]],
        "calls": [["/home/me/multi.py", line, "forward", caller]],
    }
    inputs = put("inputs", "args", [TENSOR, *parameters])
    return changed(everything(put("graph", [nodes]), inputs, put("about", about)))


def test_another_piece_of_a_function_is_not_another_model() -> None:
    """A further graph break makes further graphs, which call fewer modules than the nearest one."""
    name = "torch_dynamo_resume_in_forward_at_{}".format
    lines = [(14, "sin"), (15, "cos"), (18, "tanh")]
    after_13 = _piece(name(13), "if x.sum() > 1:", (14, "sin"), (15, "cos"), head=False)
    after_8 = _piece(name(8), "print(x)", (10, "sin"), *lines)
    whole = _piece("forward", "model(x)", (7, "exp"), (8, "exp"))
    for other in (after_8, whole):
        assert not causes.is_version_of("forward [2/0]", after_13, "forward [2/0]", other)
        assert not causes.is_version_of("forward [2/0]", other, "forward [2/0]", after_13)
    assert causes.new(after_13, after_8).what == (
        "the store had no similar graph; this one is the piece of forward after the graph break at multi.py:13"
    )
    assert causes.new(whole, after_8).what == "the store had no similar graph"
    moved = _piece(name(14), "if x.sum() > 1:", (15, "sin"), (17, "exp"), (18, "log"), head=False)
    assert causes.is_version_of("forward [2/0]", moved, "forward [2/0]", after_13), "an edit above moves the lines"


def test_a_graph_that_ends_earlier_may_have_a_graph_break() -> None:
    lines = (14, "sin"), (15, "cos"), (18, "tanh")
    before, after = _piece("forward", "model(x)", *lines), _piece("forward", "model(x)", *lines[:2], head=False)
    (found,) = causes.causes(before, after, difference.compare(before, after))
    assert found.short == "another model or graph break"
    assert found.what.endswith("; this graph ends at multi.py:15, the nearest one at multi.py:18")
    assert causes.is_version_of("forward [0/0]", after, "forward [0/0]", before)
