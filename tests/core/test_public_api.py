"""Tests that the names of `import precompiled` are found without torch, and are shown as a user reads them."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import precompiled
from precompiled.client.report_table import GraphReports
from precompiled.core.errors import NO_COMPILER_ACTION
from precompiled.core.setting_values import MODES
from precompiled.packages.function_report import FunctionReports

ERRORS = ("ConfigError", "NotServed", "PackageError", "PrecompiledError")
GRAPHS = [
    precompiled.GraphReport("1", "Net.forward [0/0]", "ab" * 32, "compiled", "hit", calls_compiled=12),
    precompiled.GraphReport("2", "<lambda> [1/0]", "cd" * 32, "bypassed", "inline", "freezing", "a\nb", calls_eager=1),
]


def test_all_public_names_are_found_without_torch() -> None:
    code = "import sys; from precompiled import *; print('torch' in sys.modules, *sorted(dir()), *dir(precompiled))"
    done = subprocess.run(
        [sys.executable, "-c", f"import precompiled; {code}; help(precompiled); print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("False ") and last == "False"
    assert all(first.split().count(name) == 2 for name in precompiled.__all__)
    assert "TYPE_CHECKING" not in first and "load_ipython_extension" not in first


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'precompiled' has no attribute 'NotServd'"):
        precompiled.NotServd  # type: ignore[attr-defined]  # noqa: B018


def test_help_begins_with_the_calls_that_a_program_needs() -> None:
    text = pydoc.plain(pydoc.render_doc(precompiled))
    before, _, internal = text.partition("PACKAGE CONTENTS")
    assert "precompiled.enable()" in before and "except precompiled.NotServed" in before
    assert all(f"class {name}(" in internal for name in ERRORS)
    public = [name for name in precompiled.__all__ if not name.startswith("_")]
    assert not [name for name in public if not re.search(rf"^ {{8}}.*\b{name}\b", before, re.MULTILINE)]
    assert not [line for line in before.splitlines() if len(line) > 80]
    for name in public:
        lines = (inspect.getdoc(getattr(precompiled, name)) or "").splitlines()
        assert lines and max(map(len, lines)) <= 72, f"help() indents {name} by eight columns"


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_base_classes_of_what_is_raised(name: str) -> None:
    kind = getattr(precompiled, name)
    assert issubclass(kind, precompiled.PrecompiledError) and name in precompiled.__all__


def test_tracebacks_name_errors_as_programs_import_them() -> None:
    (line,) = traceback.format_exception_only(precompiled.NotServed("f", "lookup-only", "the mode is lookup"))
    assert line.startswith("precompiled.NotServed: the graph f is not served (lookup-only): the mode is lookup.")


def test_not_served_omits_the_traceback_of_a_worker() -> None:
    error = precompiled.NotServed("f", "compile-error", "ModuleNotFoundError: No module named 'x'\nTraceback ...\n")
    assert str(error).startswith(
        "the graph f is not served (compile-error): ModuleNotFoundError: No module named 'x'. "
    )
    assert "Traceback" not in str(error)


def test_folder_is_no_package_file(tmp_path: Path) -> None:
    from precompiled.packages import portable_format

    with pytest.raises(precompiled.PackageError, match=r"it is a folder\. Pass a file that save_package wrote$"):
        portable_format.read(tmp_path)


def test_not_served_survives_a_pickle() -> None:
    """A process pool pickles the exceptions of its workers."""
    error = precompiled.NotServed("Net.forward [0/0]", "lookup-only", "the store has no artifact")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is precompiled.NotServed
    assert (str(copy), copy.code, copy.graph) == (str(error), "lookup-only", "Net.forward [0/0]")


def test_reports_print_as_a_table() -> None:
    lines = repr(GraphReports(GRAPHS)).splitlines()
    assert lines[0].split() == "GRAPH STATE SOURCE EAGER CALLS COMPILED CALLS KEY".split()
    assert lines[1].split() == ["Net.forward", "[0/0]", "compiled", "hit", "0", "12", "abababababab"]
    assert lines[3] == "  freezing: a" and len(lines) == 4 and max(map(len, lines)) <= 80
    assert repr(GRAPHS[0]) == "<GraphReport Net.forward [0/0]: compiled (hit), 0 eager and 12 compiled calls>"


def test_calls_that_are_not_counted_print_as_a_dash() -> None:
    graph = precompiled.GraphReport("3", "Net.forward [0/0]", "", "bypassed", "inline", "switched-off", "why")
    for others in ([], [GRAPHS[0]]):
        reports = GraphReports([*others, graph])
        lines = repr(reports).splitlines()
        assert lines[-2].split() == ["Net.forward", "[0/0]", "bypassed", "inline", "-", "-", "-"]
        assert reports._repr_html_().count("<td>-</td><td>-</td><td>-</td>") == 1
    assert lines[0].index("EAGER CALLS") + len("EAGER CALLS") == lines[-2].index("-") + 1, "aligned as the numbers"
    assert repr(graph) == "<GraphReport Net.forward [0/0]: bypassed (inline), calls not counted>"


def test_reports_are_html_in_a_notebook() -> None:
    html = GraphReports(GRAPHS)._repr_html_()
    assert html.startswith("<table>") and "<td>&lt;lambda&gt; [1/0]</td>" in html and "freezing: a" in html
    assert "<lambda>" not in html


def test_function_reports_print_as_a_table() -> None:
    report = precompiled.FunctionReport("net.Net.forward", "traced", reasons=("s.n: 3 here, 2 when traced",), guards=7)
    text = repr(FunctionReports([report]))
    assert text.splitlines()[1:] == ["net.Net.forward  traced       7", "  s.n: 3 here, 2 when traced"]
    assert repr(report) == "<FunctionReport net.Net.forward: traced>"


def test_empty_reports_say_why() -> None:
    assert "no compiled function" in repr(GraphReports()) and "no compiled" in GraphReports()._repr_html_()
    assert "no frame" in repr(FunctionReports())
    assert GraphReports() == []


def test_bad_mode_is_reported_as_an_argument() -> None:
    with pytest.raises(precompiled.ConfigError) as caught:
        precompiled.enable("fast")
    assert str(caught.value) == (
        f"enable() got the mode 'fast': expected one of {', '.join(MODES)}. Pass one of these modes, or none"
    )


def test_package_in_a_missing_folder_names_the_folder(tmp_path: Path) -> None:
    from precompiled.packages import portable_format

    index = portable_format.Index("net", "Net.forward", "", {}, [])
    with pytest.raises(precompiled.PackageError) as caught:
        portable_format.write(tmp_path / "missing" / "net.pkg", index, {})
    assert str(caught.value).endswith(f"No such file or directory. Create the folder {tmp_path / 'missing'}")


def test_advice_that_the_cause_has_given_is_not_repeated() -> None:
    error = precompiled.NotServed("f [0/0]", "no-compiler", f"InvalidCxxCompiler: no compiler. {NO_COMPILER_ACTION}")
    assert str(error).count("Install g++") == 1
