"""Tests of the key with generated programs: names never affect the key, and every detail of the computation does.

A program is drawn as data (arguments, statements, outputs) and written as Python source, which Dynamo captures. Two
programs that differ only in names share a key, and two programs that differ in one detail do not. A capture must not
change the caller's graph.

Each statement uses the previous value, so no statement is dead code. All arguments are used in order first, because
Dynamo orders a graph's inputs by their first use.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st
from support_graphs import captures
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from precompiled.core.errors import Bypass
from precompiled.graph import capture

pytestmark = pytest.mark.integration

deterministic = settings(derandomize=True, database=None)

# ---------------------------------------------------------------- programs as data

# {v}: the previous value; {o}: another value; {d}: a drawn detail (constant, dim, dtype).
UNARY = ("{v}.sin()", "torch.cos({v})", "torch.tanh({v})", "torch.nn.functional.gelu({v})", "{v}.abs()", "-{v}")
BINARY = ("{v} + {o}", "{v} - {o}", "{v} * {o}", "torch.maximum({v}, {o})", "torch.atan2({v}, {o})")
NOT_COMMUTATIVE = (
    ("{v} - {o}", "{o} - {v}"),
    ("{v} / {o}", "{o} / {v}"),
    ("torch.atan2({v}, {o})", "torch.atan2({o}, {v})"),
    ("torch.sub({v}, other={o})", "torch.sub({o}, other={v})"),
)
HELPER = "{helper}({v}, {o}, {scale}={d})"
WITH_CONSTANT = (
    "{v} * {d}",
    "{d} - {v}",
    "torch.clamp({v}, min={d})",
    "torch.add({v}, {o}, alpha={d})",
    "torch.nn.functional.leaky_relu({v}, negative_slope={d})",
    "torch.full_like({v}, {d}) * {v}",
    HELPER,
)
WITH_DIM = (
    "torch.softmax({v}, dim={d})",
    "torch.cumsum({v}, {d})",
    "{v}.flip({d})",
    "{v} - {v}.mean(dim={d}, keepdim=True)",
    "torch.roll({v}, shifts=(1,), dims=({d},))",
)
WITH_DTYPE = ("{v}.to({d}).to(torch.float32)", "({v} + torch.ones_like({v}, dtype={d})).float()")
DTYPES = ("torch.float64", "torch.float16", "torch.bfloat16")
DETAILS = {
    **dict.fromkeys(WITH_CONSTANT, "constant"),
    **dict.fromkeys(WITH_DIM, "dim"),
    **dict.fromkeys(WITH_DTYPE, "dtype"),
}

SIZES = st.integers(2, 5)  # torch treats 0 and 1 specially
INTEGERS = st.integers(-1000, 1000)
FLOATS = st.floats(-1e6, 1e6)
CONSTANTS = INTEGERS | FLOATS


@dataclass(frozen=True)
class Argument:
    dtype: str = "float32"
    requires_grad: bool = False


@dataclass(frozen=True)
class Statement:
    """{o} becomes one of the values before {v}: the one at index ``other``, modulo the number of these values."""

    template: str
    other: int = 0
    detail: object = None


@dataclass(frozen=True)
class Helper:
    """``def helper(a, b, *, scale)``: applies an operator to the scaled ``a`` and ``b``; ``scale`` has a default."""

    operator: str
    default: float
    nested: bool  # if true, the helper is defined inside the program's function and closes over the first argument


@dataclass(frozen=True)
class Program:
    shape: tuple[int, int]
    arguments: tuple[Argument, ...]
    statements: tuple[Statement, ...]
    helper: Helper
    outputs: tuple[int, ...] = (-1,)  # indices of statement values
    # After the first use of all arguments, argument ``positions[i]`` takes the place of argument i.
    positions: tuple[int, ...] = ()

    def with_statement(self, at: int, statement: Statement) -> Program:
        statements = list(self.statements)
        statements.insert(at % (len(statements) + 1), statement)
        return replace(self, statements=tuple(statements))


@st.composite
def programs(draw: st.DrawFn, arguments: int = 1) -> Program:
    """Draw a program with at least ``arguments`` arguments."""
    templates = UNARY + BINARY + tuple(DETAILS)

    def statement() -> Statement:
        template = draw(st.sampled_from(templates))
        details = {"dim": st.integers(0, 1), "dtype": st.sampled_from(DTYPES), "constant": CONSTANTS}
        kind = DETAILS.get(template)
        return Statement(template, draw(st.integers(0, 9)), draw(details[kind]) if kind else None)

    number = draw(st.integers(arguments, 3))
    return Program(
        (draw(SIZES), draw(SIZES)),
        tuple(Argument(draw(st.sampled_from(("float32", "float64"))), draw(st.booleans())) for _ in range(number)),
        tuple(statement() for _ in range(draw(st.integers(1, 4)))),
        Helper(draw(st.sampled_from(BINARY)), draw(FLOATS), draw(st.booleans())),
    )


# ---------------------------------------------------------------- programs as source


@dataclass(frozen=True)
class Spelling:
    """The parts of a program's text that must not affect the key."""

    names: tuple[str, ...]
    file: str
    lines_before: int
    remark: str  # text of comments and docstrings


# Some of these names equal names that Dynamo, FX and AOTAutograd generate.
NAMES = (
    "x",
    "y",
    "z",
    "a",
    "b",
    "value",
    "self",
    "cls",
    "args",
    "kwargs",
    "input",
    "output",
    "inputs",
    "placeholder",
    "arg0",
    "arg1",
    "arg0_1",
    "p_0",
    "p_1",
    "l_x_",
    "L_x_",
    "l_args_0_",
    "primals_1",
    "tangents_1",
    "getitem",
    "add",
    "sub",
    "sub_1",
    "mul",
    "sin",
    "call_function",
    "call_method",
    "get_attr",
    "s0",
    "u0",
    "weight",
    "bias",
    "graph",
    "größe",
    "_",
    "__y",
    "n",
    "d",
    "e",
    "t",
    "helper",
    "scale",
    "function",
    "_0",
    "x_1",
    "float_1",
    "int_2",
)
assert not any(keyword.iskeyword(name) for name in NAMES)

spellings = st.builds(
    Spelling,
    st.permutations(NAMES).map(tuple),
    st.sampled_from(("model", "train_v2", "a b", "größe")),
    st.integers(0, 40),
    st.text(st.characters(codec="utf-8", categories=("L", "N", "Zs")), max_size=20),
)
PLAIN = Spelling(tuple(f"name{number}" for number in range(30)), "plain", 0, "")


def source(program: Program, spelling: Spelling) -> tuple[str, str]:
    """Return the Python source of a program, and the name of its function."""
    names = iter(spelling.names)
    function, helper, first, second, scale, default = (next(names) for _ in range(6))
    arguments = [next(names) for _ in program.arguments]
    used = [arguments[position] for position in program.positions] or arguments
    body: list[str] = []
    seen: list[str] = list(used)
    value = next(names)
    # Use each argument once, in order, before the first statement.
    body.append(f"{value} = {' + '.join(f'{name} * {number + 2}' for number, name in enumerate(arguments))}")
    results = []
    for statement in program.statements:
        other = seen[statement.other % len(seen)]
        seen.append(value)
        text = statement.template.format(v=value, o=other, d=_literal(statement.detail), helper=helper, scale=scale)
        value = next(names)
        results.append(value)
        body += [f"# {spelling.remark}", f"{value} = {text}"]
    outputs = [results[position] for position in program.outputs]
    body.append(f"return {', '.join(outputs)}")

    captured_value = f" + {arguments[0]}" if program.helper.nested else ""
    inner = program.helper.operator.format(v=f"({first} * {scale})", o=second)
    helper_lines = [
        f"def {helper}({first}, {second}, *, {scale}, {default}={_literal(program.helper.default)}):",
        f'    """{spelling.remark}"""',
        f"    return ({inner}) * {default}{captured_value}",
    ]
    if program.helper.nested:
        body = helper_lines + body
        helper_lines = []
    lines = [
        *["" for _ in range(spelling.lines_before)],
        "import torch",
        *helper_lines,
        f"def {function}({', '.join(arguments)}):",
        *(f"    {line}" for line in body),
    ]
    return "\n".join(lines) + "\n", function


def _literal(detail: object) -> str:
    return detail if isinstance(detail, str) else f"({detail!r})"  # in parentheses, -3 stays one constant


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Program, Spelling], Callable[..., Any]]:
    """Return a function that writes a program to its own file, where Dynamo can read its source, and imports the
    program.
    """
    folder = tmp_path_factory.mktemp("programs")
    numbers = count()

    def write(program: Program, spelling: Spelling) -> Callable[..., Any]:
        text, name = source(program, spelling)
        path: Path = folder / f"{spelling.file}_{next(numbers)}.py"
        path.write_text(text, encoding="utf-8")
        namespace: dict[str, Any] = {}
        exec(compile(text, str(path), "exec"), namespace)
        found: Callable[..., Any] = namespace[name]
        return found

    return write


def inputs_of(program: Program) -> list[torch.Tensor]:
    return [
        torch.ones(program.shape, dtype=getattr(torch, argument.dtype), requires_grad=argument.requires_grad)
        for argument in program.arguments
    ]


Written = Callable[[Program, Spelling], Callable[..., Any]]


def key_of(
    written: Written, program: Program, spelling: Spelling = PLAIN, inputs: list[torch.Tensor] | None = None
) -> str:
    (found,) = captures(written(program, spelling), *(inputs_of(program) if inputs is None else inputs))
    return found.key


# ---------------------------------------------------------------- names do not count


@pytest.mark.integration
@settings(deterministic, max_examples=60)
@given(program=programs(), spelling=spellings)
def test_programs_that_differ_only_in_names_share_a_key(written: Written, program: Program, spelling: Spelling) -> None:
    assert key_of(written, program, spelling) == key_of(written, program)


# ---------------------------------------------------------------- each detail counts

Pair = tuple[Program, Program]
Change = Callable[[st.DrawFn, Program], Pair]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    """Register a function that draws two versions of a program, which differ in one detail."""
    CHANGES[function.__name__] = function
    return function


def two_of(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> list[Any]:
    return draw(st.lists(values, min_size=2, max_size=2, unique=True))


def with_either(draw: st.DrawFn, program: Program, left: Statement, right: Statement) -> Pair:
    """Return two programs: with ``left``, or with ``right``, inserted at the same drawn position."""
    at = draw(st.integers(0, 9))
    return program.with_statement(at, left), program.with_statement(at, right)


@change
def operator(draw: st.DrawFn, program: Program) -> Pair:
    templates = two_of(draw, st.sampled_from(draw(st.sampled_from((UNARY, BINARY)))))
    other = draw(st.integers(0, 9))
    return with_either(draw, program, *(Statement(template, other) for template in templates))


@change
def constant(draw: st.DrawFn, program: Program) -> Pair:
    # The two constants have the same type, because most operators treat 2 and 2.0 alike.
    constants = draw(
        st.lists(INTEGERS, min_size=2, max_size=2, unique=True)
        | st.lists(FLOATS, min_size=2, max_size=2, unique=True)
        | FLOATS.map(lambda number: [number, math.nextafter(number, math.inf)])
    )
    template, other = draw(st.sampled_from(WITH_CONSTANT)), draw(st.integers(0, 9))
    return with_either(draw, program, *(Statement(template, other, item) for item in constants))


@change
def order_of_operands(draw: st.DrawFn, program: Program) -> Pair:
    templates, other = draw(st.sampled_from(NOT_COMMUTATIVE)), draw(st.integers(0, 9))
    return with_either(draw, program, *(Statement(template, other) for template in templates))


@change
def which_operand(draw: st.DrawFn, program: Program) -> Pair:
    """One statement uses a different argument, possibly of the same dtype."""
    left, right = two_of(draw, st.integers(0, len(program.arguments) - 1))
    template = draw(st.sampled_from(BINARY))
    return with_either(draw, program, Statement(template, left), Statement(template, right))


@change
def dim(draw: st.DrawFn, program: Program) -> Pair:
    template = draw(st.sampled_from(WITH_DIM))
    return with_either(draw, program, Statement(template, 0, 0), Statement(template, 0, 1))


@change
def dtype_of_a_cast(draw: st.DrawFn, program: Program) -> Pair:
    template, dtypes = draw(st.sampled_from(WITH_DTYPE)), two_of(draw, st.sampled_from(DTYPES))
    return with_either(draw, program, *(Statement(template, 0, dtype) for dtype in dtypes))


@change
def operator_of_the_helper(draw: st.DrawFn, program: Program) -> Pair:
    operators = two_of(draw, st.sampled_from(BINARY))
    called = program.with_statement(draw(st.integers(0, 9)), Statement(HELPER, 0, 2.0))
    left, right = (replace(called, helper=replace(program.helper, operator=item)) for item in operators)
    return left, right


@change
def default_of_a_keyword(draw: st.DrawFn, program: Program) -> Pair:
    defaults = two_of(draw, FLOATS)
    called = program.with_statement(draw(st.integers(0, 9)), Statement(HELPER, 0, 2.0))
    left, right = (replace(called, helper=replace(program.helper, default=item)) for item in defaults)
    return left, right


def with_argument(draw: st.DrawFn, program: Program, **changed: Callable[[Any], Any]) -> Pair:
    at = draw(st.integers(0, len(program.arguments) - 1))
    arguments = list(program.arguments)
    arguments[at] = replace(
        arguments[at], **{name: function(getattr(arguments[at], name)) for name, function in changed.items()}
    )
    return program, replace(program, arguments=tuple(arguments))


@change
def dtype_of_an_argument(draw: st.DrawFn, program: Program) -> Pair:
    return with_argument(draw, program, dtype=lambda dtype: {"float32": "float64", "float64": "float32"}[dtype])


@change
def requires_grad(draw: st.DrawFn, program: Program) -> Pair:
    return with_argument(draw, program, requires_grad=lambda before: not before)


@change
def shape(draw: st.DrawFn, program: Program) -> Pair:
    left, right = two_of(draw, st.tuples(SIZES, SIZES))
    return replace(program, shape=left), replace(program, shape=right)


@change
def swapped_arguments(draw: st.DrawFn, program: Program) -> Pair:
    """Two arguments with equal metadata exchange their places of use."""
    alike = (program.arguments[0],) * len(program.arguments)
    # At least one statement must treat its two operands differently, so that the exchange has an effect.
    statement = Statement("torch.atan2({v}, {o})", 0)
    used = replace(program, arguments=alike).with_statement(draw(st.integers(0, 9)), statement)
    others = tuple(range(2, len(alike)))
    return replace(used, positions=(0, 1, *others)), replace(used, positions=(1, 0, *others))


@change
def extra_output(draw: st.DrawFn, program: Program) -> Pair:
    longer = program.with_statement(draw(st.integers(0, 9)), Statement("torch.tanh({v})"))
    return longer, replace(longer, outputs=(-1, draw(st.integers(0, len(longer.statements) - 2))))


@change
def order_of_outputs(draw: st.DrawFn, program: Program) -> Pair:
    longer = program.with_statement(draw(st.integers(0, 9)), Statement("torch.tanh({v})"))
    outputs = two_of(draw, st.integers(0, len(longer.statements) - 1))
    return replace(longer, outputs=tuple(outputs)), replace(longer, outputs=tuple(reversed(outputs)))


@pytest.mark.parametrize("what", CHANGES)
def test_programs_that_differ_in_one_detail_have_different_keys(written: Written, what: str) -> None:
    @settings(deterministic, max_examples=15)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        left, right = CHANGES[what](data.draw, data.draw(programs(arguments=2)))
        # Both programs have the same spelling, so they differ in the detail only.
        assert key_of(written, left) != key_of(written, right), (source(left, PLAIN)[0], source(right, PLAIN)[0])

    check()


@settings(deterministic, max_examples=15)
@given(program=programs(arguments=2))
def test_shared_tensor_for_two_arguments_changes_the_key(written: Written, program: Program) -> None:
    alike = replace(program, arguments=(program.arguments[0],) * len(program.arguments))
    two = inputs_of(alike)
    assert key_of(written, alike, inputs=two) != key_of(written, alike, inputs=[two[0], two[0], *two[2:]])


# ---------------------------------------------------------------- the caller's graph stays as it is


def _graphs(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    yield module
    for child in module.children():
        if isinstance(child, torch.fx.GraphModule):
            yield from _graphs(child)


def snapshot(module: torch.fx.GraphModule) -> list[Any]:
    """Return everything of a graph that a capture could change: texts, nodes and their metadata (by identity), names,
    attributes.
    """
    found: list[Any] = []
    for graph in _graphs(module):
        namespace = graph.graph._graph_namespace
        found.append(
            {
                "readable": graph.print_readable(print_output=False),
                "text": str(graph.graph),
                "code": graph.code,
                "nodes": [(node.name, node.op, node.target, node.args, node.kwargs) for node in graph.graph.nodes],
                "meta": [{name: id(value) for name, value in node.meta.items()} for node in graph.graph.nodes],
                "meta order": [list(node.meta) for node in graph.graph.nodes],
                "of the node": [sorted(vars(node)) for node in graph.graph.nodes if hasattr(node, "__dict__")],
                "of the graph": {name: id(value) for name, value in graph.meta.items()},
                "attributes": {name: id(value) for name, value in vars(graph).items()},
                "names used": set(namespace._used_names),
                "names of objects": {name: id(value) for value, name in namespace._obj_to_name.items()},
                "numbers of names": dict(namespace._base_count),
            }
        )
    return found


@contextmanager
def refusing(expected: str | None) -> Iterator[None]:
    """Expect that a capture refuses the graph with code ``expected``, or accepts the graph if ``expected`` is None."""
    try:
        yield
    except Bypass as refused:
        assert refused.code == expected
    else:
        assert expected is None


def mark(module: torch.fx.GraphModule, name: str, value: Any) -> None:
    """Mark the last operation, so that a capture has read the rest of the graph when it finds the mark."""
    *_, last, _output = module.graph.nodes
    last.meta[name] = value


# Causes that stop a capture at different points, with the expected code and the options of the capture.
REFUSALS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {}),
    "a marked node": ("marked-node", {}),
    "an odd input": ("unsupported-input", {}),
    "an option": ("fx-wrapper", {"fx_wrapper": True}),
}


@settings(deterministic, max_examples=40)
@given(program=programs(), refusal=st.sampled_from(sorted(REFUSALS)))
def test_capture_leaves_the_graph_of_the_caller_unchanged(written: Written, program: Program, refusal: str) -> None:
    code, options = REFUSALS[refusal]
    pairs = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        first = next(iter(module.graph.nodes))
        if refusal == "a marked node":
            mark(module, "recompute", CheckpointPolicy.MUST_SAVE)
        described = first.meta["example_value"]
        if refusal == "an odd input":
            first.meta["example_value"] = None
        before = snapshot(module)
        with refusing(code):
            capture.capture(module, options)
        pairs.append((before, snapshot(module)))
        first.meta["example_value"] = described
        return module.forward

    torch._dynamo.reset()
    torch.compile(written(program, PLAIN), backend=backend)(*inputs_of(program))
    ((before, after),) = pairs
    assert after == before


def test_capture_leaves_nested_graphs_unchanged() -> None:
    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: y.sin() * 2, x, use_reentrant=False)

    pairs = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        before = snapshot(module)
        assert len(before) == 2
        capture.capture(module, {})
        pairs.append((before, snapshot(module)))
        return module.forward

    torch._dynamo.reset()
    torch.compile(checkpointed, backend=backend)(torch.ones(3, requires_grad=True))
    ((before, after),) = pairs
    assert after == before
