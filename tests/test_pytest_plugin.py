"""Tests of `pytest --precompiled`, with real pytest processes and a real daemon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support_host import Host

from precompiled.pytest_plugin import Totals, format_report

pytestmark = pytest.mark.integration

TESTS = """\
import os

import pytest
import torch
import torch._inductor.config

from precompiled.client.process import PROCESS

X = torch.ones(8)


def test_served():
    assert torch.equal(torch.compile(lambda x: x * {factor} + 1)(X), X * {factor} + 1)


def test_in_process():
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        assert torch.compile(lambda x: x.view(2, 4))(X).shape == (2, 4)


def test_children_have_it_too():
    assert os.environ.get("PRECOMPILED_MODE") == "wait" and "sitecustomize" in os.environ["PYTHONPATH"]
    assert PROCESS.given["tiers"] == os.environ["PRECOMPILED_TIERS"] == "default"
"""


def run(host: Host, *arguments: str, status: int = 0, factor: int = 2, env: dict[str, str] | None = None) -> str:
    tests = host.root / "tests" / "test_of_a_user.py"
    tests.parent.mkdir(exist_ok=True)
    tests.write_text(TESTS.format(factor=factor))
    options = ("-q", "-p", "no:cacheprovider", "--tb=short", "--show-capture=no")
    command = ("-m", "pytest", *options, *arguments, str(tests))
    return host.program(*command, cwd=tests.parent, env=env).ended(status=status)


def report(text: str) -> list[str]:
    """Returns the lines below the headline of precompiled's report."""
    below = re.split(r"=+ precompiled \(\w+\) =+\n", text)
    assert len(below) == 2, text
    return below[1].split("\n=")[0].splitlines()


def test_wait_reports_served_and_unserved_graphs(served: Host) -> None:
    lines = report(run(served, "--precompiled=wait"))
    assert lines[0] == "2 graphs, 1 by the daemon (1 compiled for this run)"
    assert re.fullmatch(r"waited for lookups, loads and compiles: .* s", lines[1])
    assert lines[2] == "1 graph was not served: caches-disabled 1"
    expected = r"  test_of_a_user\.py::test_in_process: <lambda> \[0/0\], compiled in process \(caches-disabled\): "
    assert re.match(expected, lines[3])
    assert lines[4] == "`precompiled explain caches-disabled` says what you can do"


def test_require_fails_a_test_with_an_unserved_graph_also_under_xdist(served: Host) -> None:
    pytest.importorskip("xdist")
    text = run(served, "--precompiled=require", "-n", "2", status=1)
    assert "1 failed, 2 passed" in text
    assert "NotServed: the graph <lambda> [0/0] is not served (caches-disabled)" in text
    lines = report(text)
    assert lines[0] == "2 graphs, 1 by the daemon (1 compiled for this run)"
    assert lines[2] == "1 graph was not served: caches-disabled 1" and "not compiled (caches-disabled)" in lines[3]


OPERATORS = """
import pytest, torch

@torch.library.custom_op("of_a_user::{name}", mutates_args=())
def {name}(x: torch.Tensor) -> torch.Tensor:
    assert x.dim() == 1
    return x * 2

@{name}.register_fake
def _(x):
    assert x.dim() == 1
    return torch.empty_like(x)
"""
USES = """
@pytest.mark.parametrize("number", [1, 2], ids=str)
def test_served(number):
    for double in (twice, torch.ops.of_a_user.doubled):
        x = torch.ones(4)
        assert torch.equal(torch.compile(lambda x: double(x) + number)(x), x * 2 + number)
"""


def test_operators_of_test_files_and_conftest_are_served(served: Host) -> None:
    """pytest rewrites the asserts of these files, but the worker imports the files without pytest."""
    folder = served.root / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text(OPERATORS.format(name="doubled"))
    (folder / "test_operators.py").write_text(OPERATORS.format(name="twice") + USES)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--precompiled=require", ".")
    lines = report(served.program(*command, cwd=folder).ended())
    assert lines[0].startswith("4 graphs, 4 by the daemon")


def test_without_the_option_the_plugin_imports_nothing(served: Host) -> None:
    """pytest loads the plugin in every project, so an import of torch would slow all test runs."""
    (served.root / "conftest.py").write_text("")
    tests = served.root / "test_nothing.py"
    tests.write_text(
        "import os, sys\n"
        "def test():\n"
        "    ours = {name for name in sys.modules if name.startswith('precompiled')}\n"
        "    assert ours == {'precompiled', 'precompiled.version', 'precompiled.pytest_plugin'}, ours\n"
        "    assert 'torch' not in sys.modules\n"
        "def test_off():\n"
        "    assert os.environ.get('PRECOMPILED') == '0'\n"
    )
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests))
    text = served.program(*command, "-k", "not off", cwd=served.root, forked=False).ended()
    assert "precompiled" not in text
    text = served.program(*command, "-k", "off", "--precompiled=off", cwd=served.root, forked=False).ended()
    assert "graph" not in text


def test_precompiled_0_overrides_the_option(served: Host) -> None:
    text = run(served, "--precompiled=require", "-k", "in_process", "-v", env={"PRECOMPILED": "0"})
    assert "precompiled: off, since PRECOMPILED=0 is set" in text and "1 passed" in text


def test_invalid_setting_is_a_usage_error(served: Host) -> None:
    client = served.program("-m", "pytest", "--precompiled=wait", env={"PRECOMPILED_WAIT_S": "soon"}, forked=False)
    client.ended(status=4)
    assert "--precompiled=wait: wait_s = 'soon' (from env PRECOMPILED_WAIT_S) cannot be used" in client.text()


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        (Totals(), ["no graphs"]),
        (
            Totals({"hit": 1}, {}, 1.0, 0.2),
            [
                "1 graph, 1 by the daemon (1 found in the store)",
                "compiles saved: 1.0 s (compared with empty caches); waited for lookups, loads and compiles: 0.2 s",
            ],
        ),
        (Totals(lost=1), ["no graphs", "1 worker ended without a report, so their graphs are not counted"]),
    ],
)
def test_report_lists_totals_and_lost_workers(totals: Totals, expected: list[str]) -> None:
    assert format_report(totals) == expected


def test_package_opts_out_of_assertion_rewriting() -> None:
    """Without this mark, pytest would rewrite all modules of precompiled that a test process imports. pytest would also
    warn if the hook has already imported a module.
    """
    import precompiled

    assert "PYTEST_DONT_REWRITE" in Path(precompiled.__file__).read_text()
