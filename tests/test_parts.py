"""Tests that precompiled's core works without its optional parts: it does not import them, and serves a host alone."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support_host import Host

from precompiled import parts
from precompiled.cli import tree

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10 has no tomllib
    import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parents[1]
PARTS = [module for modules in parts.PARTS.values() for module in modules]
ENTRIES = {name: value for name, value in vars(parts).items() if isinstance(value, parts.PartModule)}


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_has_the_signatures_of_its_protocol(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.module.startswith(tuple(PARTS))
    protocol = getattr(parts, parts.__annotations__[name].removeprefix("PartModule[").removesuffix("]"))
    functions = {name: value for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"}
    assert functions
    for function, expected in functions.items():
        own = inspect.signature(getattr(entry.require(), function))
        assert list(own.parameters) == list(inspect.signature(expected).parameters)[1:], function


def test_contract_of_the_linter_has_all_modules() -> None:
    """Each module must be listed as core or as part: the linter would not check the imports of an unlisted module."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (item for item in settings["tool"]["importlinter"]["contracts"] if "no part" in item["name"])
    assert {name.removesuffix(".**") for name in contract["forbidden_modules"]} == set(PARTS)
    core = {name.removesuffix(".**").removesuffix(".*") for name in contract["source_modules"]}
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    names = {f"precompiled.{name}" for layer in layers for name in layer.split(" : ")}
    assert core | set(PARTS) == names | {"precompiled", "precompiled.service.watch"}
    assert core.isdisjoint(PARTS)


def test_part_that_lacks_a_dependency_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a part whose own module does not exist counts as missing. A missing dependency of a part is an error."""
    (tmp_path / "part_without_dependency.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        parts.PartModule("part_without_dependency").get()
    assert parts.PartModule("no_such_part.deep.module").get() is None
    assert not parts.is_installed("no_such_part.deep.module")


# ---------------------------------------------------------------- the core without the parts

# Commands and groups that belong to parts
MISSING = {"watch", "timeline", "remote", "farm", "tools tune", "tools trace", "tools metrics"}
PROGRAM = """\
import json
import torch
import precompiled

@torch.compile
def f(x):
    return (x * 2 + 1).sin()

x = torch.arange(8.0)
with torch.no_grad():
    first = f(x)
    assert precompiled.wait(300)
    assert torch.allclose(f(x), (x * 2 + 1).sin()) and torch.allclose(first, f(x))
(graph,) = precompiled.report()
print(json.dumps({"source": graph.source, "state": graph.state, "from": precompiled.__file__}))
"""


def core_python(folder: Path) -> Path:
    """Create a virtual environment with precompiled's core alone, and return its Python.

    All other packages come from the environment of the tests.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(ask, text=True, timeout=60).strip())
    for source, name in (
        ("precompiled", "precompiled"),
        ("service", "precompiled/service"),
        ("systemd", "precompiled/systemd"),
    ):
        shutil.copytree(ROOT / source, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    for module in PARTS:
        path = site / module.replace(".", "/")
        shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink()
    # Python ignores .pth files in a folder that a .pth file adds. So the editable install of precompiled has no effect.
    (site / "packages.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return python


@pytest.mark.integration
def test_core_serves_a_host_without_any_part(host: Host, tmp_path: Path) -> None:
    host.python = str(core_python(tmp_path / "core"))
    (host.root / "program.py").write_text(PROGRAM)

    def served(**variables: str) -> str:
        client = host.program("-m", "precompiled", "run", "--", host.python, "program.py", env=variables, forked=False)
        found = client.result()
        assert found["state"] == "compiled" and str(tmp_path) in found["from"]
        return str(found["source"])

    assert "pid" in host.command("daemon", "start")
    assert served() == "swap"
    assert served() == "hit"
    assert served(PRECOMPILED_PACKAGES="program") == "hit", "this process writes the package"
    assert served(PRECOMPILED_PACKAGES="program") == "package"
    assert host.stats().compiled == 1
    # A setting of a part that is not installed must not prevent a cache hit.
    assert served(PRECOMPILED_REMOTE=f"file://{tmp_path}/bucket", PRECOMPILED_FARM="auto") == "hit"

    assert "1 worker" in host.command("status")
    assert '"remote": null' in host.command("status", "--json")
    assert "program.py" in host.command("explain")
    assert "hits" in host.command("cache", "stats")
    for group in ("", "tools"):
        shown = {line.split()[0] for line in host.command(*group.split(), "--help").splitlines() if line[:2] == "  "}
        of_parts = {name for name in tree.children(group) if f"{group} {name}".strip() in MISSING}
        assert shown.isdisjoint(of_parts) and shown >= {*tree.children(group)} - of_parts, group
    assert "--target" not in host.command("run", "--help")
    for name in ("watch", "push"):
        host.command(name, status=2)
        assert f"precompiled: No such command {name!r}" in "".join(host.clients[-1].errors)
