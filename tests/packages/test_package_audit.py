"""Tests of the audit, which traces a sample of the frames that have a package, and compares trace and package.

If the trace differs, the audit disables the package.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import Any

import pytest
from support_host import Host
from support_packages import PROGRAM, run, write

from precompiled.packages import audit
from precompiled.store import package_format as fmt
from precompiled.store.packages import Entry, PackageStore

pytestmark = pytest.mark.integration


def first(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the state of each frame, and the code of its first reason."""
    return found["states"], [reasons[0] for reasons in found["reasons"]]


def entries(host: Host, module: str) -> list[Entry]:
    return [entry for entry in PackageStore(host.root / "store").entries() if entry.header.module == module]


@pytest.mark.reason("package-audit")
def test_audit_disables_a_package_that_contradicts_the_trace(served: Host) -> None:
    """No known program records a wrong entry, so the test writes one into the store."""
    folder = served.root / "cases"
    write(folder, after=False)
    (folder / "twice.py").write_text(
        "import torch\ndef f(x):\n    return torch.addmm(x, x, x, alpha=2.0)\n"
        "def build():\n    return f, [(torch.randn(4, 4),)]\n"
    )
    (folder / "thrice.py").write_text((folder / "twice.py").read_text().replace("2.0", "3.0"))
    assert first(run(served, sys.executable, folder, ["twice", "thrice"])["twice"]) == (["recorded"], [""])

    store = PackageStore(served.root / "store")
    (twice,), (thrice,) = entries(served, "twice"), entries(served, "thrice")
    store.remove(twice.header.function)
    same_function = {name: getattr(twice.header, name) for name in ("function", "module", "qualname", "code")}
    store.publish(replace(thrice.header, **same_function), thrice.about, thrice.body)
    assert not run(served, sys.executable, folder, ["twice"])["twice"]["equal"], "the audit has nothing to find"

    found = run(served, sys.executable, folder, ["twice", "thrice"], audit=True)
    assert first(found["twice"]) == (["traced"], ["package-audit"])
    assert found["twice"]["equal"]
    assert "twice.f differs from its package: its graphs differ" in found["twice"]["reasons"][0][1]
    assert first(found["thrice"]) == (["audited"], [""])
    assert found["thrice"]["reasons"][0][1] == audit.SAID

    found = run(served, sys.executable, folder, ["twice", "thrice"])
    assert first(found["twice"]) == (["traced"], ["package-audit"]), "it stays disabled, and is not recorded"
    assert found["twice"]["equal"]
    assert first(found["thrice"]) == (["used"], [""])
    assert [refusal["function"] for refusal in store.refusals()] == ["twice.f"]

    store.clear()
    assert first(run(served, sys.executable, folder, ["twice"])["twice"]) == (["recorded"], [""])


def test_process_in_mode_lookup_is_never_drawn_for_an_audit(served: Host) -> None:
    """A server that starts from a base store uses this mode. A trace would delay the server's first reply."""
    folder = served.root / "cases"
    write(folder, after=False)
    names = ["two_shapes"]
    run(served, sys.executable, folder, names)
    assert "audited" in run(served, sys.executable, folder, names, audit=True)["two_shapes"]["states"]
    spec = {"folder": str(folder), "cases": names, "without": "nothing"}
    variables = {"PRECOMPILED_PACKAGE_AUDIT": "1", "PRECOMPILED_MODE": "lookup", "OMP_NUM_THREADS": "1"}
    found = served.start(spec, {"PRECOMPILED_PACKAGES": "function", **variables}, sys.executable, PROGRAM).result()
    assert set(found["two_shapes"]["states"]) == {"used"}


def test_recording_again_replaces_the_equal_entry(served: Host) -> None:
    """The names that Dynamo generates differ from process to process. The names must not make two entries differ."""
    folder = served.root / "cases"
    write(folder, after=False)
    names = ["graph_break", "two_shapes"]
    run(served, sys.executable, folder, names)
    kept = {name: len(entries(served, name)) for name in names}
    for _ in range(2):
        shutil.rmtree(served.root / "store" / "artifacts")  # as if all artifacts were evicted
        found = run(served, sys.executable, folder, names[::-1])
        assert all("recorded" in found[name]["states"] for name in names)
        assert {name: len(entries(served, name)) for name in names} == kept


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring reports calls beside a profiler")
@pytest.mark.reason("package-profiler")
def test_an_audit_beside_a_profiler_leaves_the_package_in_use(served: Host) -> None:
    """With an active profiler the audit cannot compare a trace with its package, so it must not disable the package."""
    folder = served.root / "cases"
    write(folder, after=False)
    (folder / "profiled.py").write_text(
        "import enum, os, sys, torch\nclass Kind(enum.Enum):\n    A = 1\n    def __bool__(self): return True\n"
        "def f(x):\n    return torch.mm(x, x) if Kind.A else x\n"
        "def build():\n"
        "    if os.environ['PRECOMPILED_PACKAGE_AUDIT'] == '1':\n        sys.setprofile(lambda *event: None)\n"
        "    return f, [(torch.randn(4, 4),)]\n"
    )
    assert first(run(served, sys.executable, folder, ["profiled"])["profiled"]) == (["recorded"], [""])
    audited = run(served, sys.executable, folder, ["profiled"], audit=True)["profiled"]
    assert first(audited) == (["traced"], ["package-profiler"])
    assert audited["equal"]
    assert first(run(served, sys.executable, folder, ["profiled"])["profiled"]) == (["used"], [""])


def about(*guards: tuple[str, str]) -> fmt.About:
    return fmt.About([fmt.GuardText(source, kind, "", None, "") for source, kind in guards])


HEADER = fmt.Header("f" * 64, "m", "f", "c" * 64, False, "compiled", artifacts=["a"], program="p")


@pytest.mark.parametrize(
    ("fresh", "guards", "said"),
    [
        (HEADER, [("L['x']", "TENSOR_MATCH")], None),
        (HEADER, [], None),
        (replace(HEADER, kind="skipped"), [], "the trace is skipped, but the package has compiled"),
        (replace(HEADER, artifacts=["b"]), [], "its graphs differ"),
        (replace(HEADER, program="q"), [], "its bytecode differs"),
        (HEADER, [("G['y']", "ID_MATCH")], "it has an additional guard, ID_MATCH on G['y']"),
    ],
)
def test_difference_compares_kind_graphs_bytecode_and_guards(
    fresh: fmt.Header, guards: list[tuple[str, str]], said: str | None
) -> None:
    kept = about(("L['x']", "TENSOR_MATCH")).to_bytes()
    assert audit.difference((HEADER, kept), (fresh, about(*guards))) == said


def test_audit_ignores_the_numbers_in_names_of_locals(served: Host) -> None:
    """If a function has a graph break inside a context manager, its trace must equal its package, whatever was traced
    before.

    Dynamo keeps such a context manager in a local variable, and numbers these variables through the whole process.
    """
    folder = served.root / "cases"
    write(folder, after=False)
    for name in ("first_of_two", "second_of_two"):
        (folder / f"{name}.py").write_text(
            "import torch\ndef f(x):\n    with torch.no_grad():\n        x = torch.mm(x, x)\n"
            "        torch._dynamo.graph_break()\n        return torch.mm(x, x)\n"
            f"f.__code__ = f.__code__.replace(co_name={name!r})\n"
            "def build():\n    return f, [(torch.randn(4, 4),)]\n"
        )
    found = run(served, sys.executable, folder, ["first_of_two", "second_of_two"])
    assert all(set(case["states"]) == {"recorded"} for case in found.values()), found
    found = run(served, sys.executable, folder, ["second_of_two"], audit=True)
    assert set(found["second_of_two"]["states"]) == {"audited"} and found["second_of_two"]["equal"], found
