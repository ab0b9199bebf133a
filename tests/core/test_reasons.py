"""Tests that core/reasons.tsv lists exactly the codes of the sources, that docs/reference/reasons.md is generated from
core/reasons.tsv, and that a test provokes each code.

A test that provokes a code has the mark ``@pytest.mark.reason("code", ...)`` and names the code in an assertion.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import support_zygote
from click.testing import CliRunner
from support_host import Client

from precompiled.cli import app
from precompiled.core import words
from precompiled.core.reasons import Outcome, Reason, ReasonKind, outcome, read_reasons

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "precompiled" / "core" / "reasons.tsv"
REASONS = read_reasons()
SOURCES = sorted(path for folder in ("precompiled", "service") for path in (ROOT / folder).rglob("*.py"))
_CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Functions that take a code as a positional argument, and the position of this argument.
_POSITIONS = {
    "Rejected": 0,
    "count_reason": 1,
    "WorkerGone": 1,
    "_end": 1,
    "kill": 0,
    "stop": 0,
    "retire": 1,
    "_rejected": 1,
    "_publish_failure": 3,
    "_failed": 2,
    "_give_up": 1,
    "code_of": 1,
}
# Keywords and assigned names whose values are codes.
_NAMES = {"code", "reason", "CORRUPT", "CRASHES_PROCESSES", "KERNEL_AHEAD", "SLOWER_THAN_EAGER"}
# cli/daemon.py forms these codes as f"start-{outcome.kind}", so no source contains them as whole strings.
COMPOSED = {"start-timed-out", "start-failed"}


def _strings(node: ast.AST | None) -> Iterator[str]:
    """Yield the string constants that an expression may evaluate to, except in calls, f-strings and comparisons."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from _strings(body)
            yield from _strings(orelse)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _strings(value)
        case ast.Tuple(elts=elements):
            for element in elements:
                yield from _strings(element)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def codes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                for keyword in node.keywords:
                    # The reason of torch._dynamo.disable(reason=...) is a sentence, not a code of this project.
                    if keyword.arg in _NAMES and _called(node) != "disable":
                        yield from _strings(keyword.value)
                position = _POSITIONS.get(_called(node))
                if position is not None and len(node.args) > position:
                    yield from _strings(node.args[position])
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value) if name in _NAMES:
                yield from _strings(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for name, value in zip(names, values, strict=False):
                    if isinstance(name, ast.Name) and name.id in _NAMES:
                        yield from _strings(value)
            case ast.Assign(targets=[ast.Name(id="_REFUSED")], value=ast.Dict(values=values)):
                # A dict in compiler_config.py maps each setting to a code and a sentence.
                for value in values:
                    assert isinstance(value, ast.Tuple)
                    yield from _strings(value.elts[0])
            case ast.For(target=ast.Tuple(elts=names), iter=ast.Tuple(elts=rows)):
                # scheduler.py chooses between two rejections in a loop over rows. The second-to-last element of a row
                # is the code.
                if [getattr(name, "id", "") for name in names][-2:] == ["code", "action"]:
                    for row in rows:
                        assert isinstance(row, ast.Tuple)
                        yield from _strings(row.elts[-2])


def in_the_sources() -> set[str]:
    found = {code for path in SOURCES for code in codes(parsed(path))}
    return {code for code in found if _CODE.fullmatch(code)} | COMPOSED


def in_the_page() -> list[str]:
    return re.findall(r"^- `([a-z0-9-]+)`:", (ROOT / "docs" / "reference" / "reasons.md").read_text(), re.MULTILINE)


def test_every_code_is_in_the_table() -> None:
    missing = in_the_sources() - set(REASONS)
    assert not missing, f"core/reasons.tsv says nothing of {', '.join(sorted(missing))}"


def test_table_has_no_code_that_is_unused() -> None:
    gone = set(REASONS) - in_the_sources()
    assert not gone, f"core/reasons.tsv has {', '.join(sorted(gone))}, which no source has any more"


def test_the_table_has_each_code_once() -> None:
    head, *rows = TABLE.read_text().splitlines()
    assert head.split("\t") == [field.name for field in fields(Reason)]
    table = [row.split("\t")[1] for row in rows]
    assert table == list(REASONS), sorted({code for code in table if table.count(code) > 1})


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "reasons.md").read_text()
    made = runpy.run_path(str(ROOT / "tools" / "reasons_page.py"))["page"](page)
    assert page == made, "run `python tools/reasons_page.py`"
    assert in_the_page() == list(REASONS)


# ---------------------------------------------------------------- outcomes


@pytest.mark.parametrize("runs", [True, False])
def test_outcome_of_a_pending_graph_depends_on_the_code(runs: bool) -> None:
    """A pending graph is compiled in process, with three exceptions: the compile would end this process, the
    compile would fail or give wrong code in this process, too, or the user cancelled the compile.
    """
    ends = {code: outcome(code, runs=runs) for code, reason in REASONS.items() if reason.outcome is not Outcome.AGAIN}
    eager = {code for code, end in ends.items() if end is Outcome.EAGER}
    while_it_runs = {"device-lost", "job-cancelled", "no-compiler", "submit-failed"}
    always = {"key-quarantined", "slower-than-eager", "wrong-result"}
    assert eager == (always | while_it_runs if runs else always)
    assert {end for code, end in ends.items() if code not in eager} == {Outcome.IN_PROCESS}
    assert outcome("of-another-version", runs=runs) is Outcome.IN_PROCESS


def test_outcomes_of_the_client_are_those_of_the_table() -> None:
    table = {code: reason.outcome or Outcome.IN_PROCESS for code, reason in REASONS.items()}
    assert {code: outcome(code, runs=False) for code in REASONS} == table


def test_only_an_explanation_reads_the_table() -> None:
    """A hit imports core/reasons.py, so the import must not read the table. ``outcome`` must not read the table,
    either, because a process that falls back may have no free descriptor.
    """
    program = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from precompiled.client import session
from precompiled.core import reasons
assert reasons.outcome("submit-failed", runs=True) is reasons.Outcome.EAGER
assert not [path for path in opened if path.endswith("reasons.tsv")]
assert reasons.read_reasons() and [path for path in opened if path.endswith("reasons.tsv")]
"""
    client = Client(support_zygote.start([sys.executable, "-c", program], os.environ, ROOT))
    client.ended()


def test_bypassed_graphs_are_always_compiled_in_process() -> None:
    """backend.py compiles every bypassed graph in process, so the table must give each code of a bypass this
    outcome.
    """
    known = [reason for reason in REASONS.values() if reason.kind in (ReasonKind.BYPASS, ReasonKind.FAILURE)]
    assert {reason.outcome for reason in known} == {Outcome.IN_PROCESS}


def test_advice_has_the_common_hint_for_an_extra() -> None:
    assert REASONS["metrics-unavailable"].advice == words.install("metrics")


def test_explain_shows_every_code() -> None:
    for code, reason in REASONS.items():
        shown = CliRunner().invoke(app.cli, ["explain", code])
        assert shown.exit_code == 0 and shown.output.startswith(f"{code}: ") and "](" not in shown.output
        found = json.loads(CliRunner().invoke(app.cli, ["explain", code, "--json"]).stdout)
        assert (found["code"], found["meaning"], found["advice"]) == (code, reason.meaning, reason.advice)
        assert not re.fullmatch("[0-9a-f]+", code), "it would be the beginning of a key"


# ---------------------------------------------------------------- an error's code

# Classes of exceptions without a code of their own: each ``raise`` of such a class must give a code.
_CODE_MUST_BE_GIVEN = {"PrecompiledError", "Bypass", "StoreError", "CompileFailed"}


def without_a_code(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that create an error without a code."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) not in _CODE_MUST_BE_GIVEN:
            continue
        if not any(keyword.arg == "code" for keyword in node.keywords):
            yield node.lineno


def test_every_error_has_a_code() -> None:
    found = [f"{path}:{line}" for path in SOURCES for line in without_a_code(parsed(path))]
    assert not found, f"errors without a code: {found}"
    assert list(without_a_code(ast.parse('raise Bypass("text")'))) == [1]


# ---------------------------------------------------------------- a test for each code


def provoked(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the codes that the marks of a file's tests claim, and the claimed codes that the file names
    nowhere else.
    """
    claims = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == _MARK]
    of_marks = [argument for claim in claims for argument in claim.args if isinstance(argument, ast.Constant)]
    claimed = {str(argument.value) for argument in of_marks}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = Counter(code for text in texts for code in claimed if re.search(rf"(?<![\w-]){code}(?![\w-])", text))
    return claimed, {code for code in claimed if named[code] <= sum(node.value == code for node in of_marks)}


_MARK = "pytest.mark.reason"


def test_every_code_is_provoked_by_a_test() -> None:
    found = {path: provoked(ast.parse(path.read_text())) for path in (ROOT / "tests").rglob("test_*.py")}
    claimed = set().union(*(codes for codes, _ in found.values()))
    missing = set(REASONS) - claimed
    assert not missing, f"no test is marked to provoke {', '.join(sorted(missing))}"
    unknown = claimed - set(REASONS)
    assert not unknown, f"core/reasons.tsv has no {', '.join(sorted(unknown))}, which tests provoke"
    unasserted = {path.name: codes for path, (_, codes) in found.items() if codes}
    assert not unasserted, f"claimed by a mark and named nowhere else: {unasserted}"


def test_code_named_only_in_its_mark_is_reported() -> None:
    source = '@pytest.mark.reason("a-code", "b-code")\ndef test_it() -> None:\n    assert error.code == "a-code"\n'
    assert provoked(ast.parse(source)) == ({"a-code", "b-code"}, {"b-code"})


def test_codes_are_collected_from_all_kinds_of_places() -> None:
    source = """
class Typed(Exception):
    code = "of-a-class"
raise Bypass("text", code="of-a-keyword")
code = error.code if known else "of-a-choice"
wire.Rejected("of-an-argument", "text")
self._end(process, reason or "of-a-fallback")
"""
    assert set(codes(ast.parse(source))) == {
        "of-a-class",
        "of-a-keyword",
        "of-a-choice",
        "of-an-argument",
        "of-a-fallback",
    }
