"""Tests of save_package and load_package: another host can use the file, or refuses it with a reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support_host import Host, new_host
from support_session import this_process

from precompiled.core.errors import PackageError
from precompiled.packages import graphs, portable, portable_format

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parent.parent / "programs" / "package_file_program.py"
SOURCE = """
import torch
from helper import g
ALPHA = 2.0
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        y = self.linear(x)
        torch._dynamo.graph_break()
        return g(y, ALPHA)
class Other(Net):
    pass
def build():
    return Net(), [(torch.randn(4, 4),)]
"""
HELPER = """
import torch
def g(x, alpha):
    return torch.addmm(x, x, x, alpha=alpha)
"""


def sources(folder: Path, source: str = SOURCE, helper: str = HELPER) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(source)
    (folder / "helper.py").write_text(helper)
    return folder


def run(host: Host, do: str, folder: Path, file: Path, environment: dict[str, str] | None = None, **more: Any) -> Any:
    spec = {"do": do, "folder": str(folder), "module": "program", "file": str(file), **more}
    extra = {"PRECOMPILED_MODE": "wait", "OMP_NUM_THREADS": "1", **(environment or {})}
    return host.start(spec, extra, program=PROGRAM).result()


@pytest.fixture(scope="module")
def saved(shared_host: Host) -> Path:
    file = shared_host.root / "net.package"
    found = run(shared_host, "save", sources(shared_host.root / "source"), file, {"PRECOMPILED_PACKAGES": "function"})
    assert found["error"] is None, found
    assert found["equal"]
    assert found["states"] == ["recorded", "recorded"], found
    return file


# Settings of the other host: no daemon, and packages only from the file.
OTHER = {"PRECOMPILED_MODE": "lookup", "PRECOMPILED_AUTOSTART": "0"}


@pytest.fixture
def other() -> Any:
    with new_host() as host:
        yield host


def test_another_host_runs_a_package_file_without_tracing(saved: Path, other: Host) -> None:
    found = run(other, "load", sources(other.root / "source"), saved, OTHER)
    assert (found["error"], found["equal"], found["frames"]) == (None, True, {})
    assert set(found["states"]) <= {"used", "skipped"} and found["states"].count("used") == 2, found


@pytest.mark.slow
@pytest.mark.reason("package-empty")
def test_saving_without_a_recording_is_an_error(other: Host) -> None:
    found = run(other, "save", sources(other.root / "source"), other.root / "x", OTHER)
    assert found["error"] == "package-empty"
    assert not (other.root / "x").exists()


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        pytest.param(
            {"source": SOURCE.replace("return Net()", "return Other()")},
            None,
            "",
            id="another-class",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"source": SOURCE.replace("class Net", "class Net2").replace("Net()", "Net2()").replace("(Net)", "(Net2)")},
            "package-function",
            "program.Net.forward",
            id="another-function",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"source": SOURCE.replace("y = self.linear(x)", "y = self.linear(x) * 2")},
            "package-source",
            "program.Net.forward",
            id="its-source",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"helper": HELPER.replace("alpha=alpha", "alpha=alpha + 1")},
            "package-source",
            "helper.g",
            id="an-inlined-source",
        ),
    ],
)
@pytest.mark.reason("package-function", "package-source")
def test_package_file_is_refused_if_the_program_differs(
    saved: Path, other: Host, change: dict[str, str], code: str | None, named: str
) -> None:
    found = run(other, "load", sources(other.root / "source", **change), saved, OTHER)
    assert found["error"] == code, found
    assert named in found.get("message", "")
    # Only the first frame depends on the changed class. The frame after the graph break may still use its package.
    assert found["states"][:1] != ["used"], found
    assert found["equal"] and found["frames"]["total"] > 0, "it is traced"


@pytest.mark.slow
def test_check_source_false_skips_only_the_check_of_sources(saved: Path, other: Host) -> None:
    change = {"helper": HELPER.replace("def g(x, alpha):", "def g(x, alpha):\n    unused = 1\n    del unused")}
    found = run(other, "load", sources(other.root / "source", **change), saved, OTHER, check_source=False)
    assert (found["error"], found["equal"], found["frames"]) == (None, True, {}), found
    change = {"source": SOURCE.replace("ALPHA = 2.0", "ALPHA = 3.0")}
    found = run(other, "load", sources(other.root / "source", **change), saved, OTHER, check_source=False)
    assert found["equal"] and found["states"].count("used") < 2, found


@pytest.mark.slow
@pytest.mark.reason("package-environment")
def test_refusal_names_the_environment_variables_that_differ(saved: Path, other: Host) -> None:
    found = run(other, "load", sources(other.root / "source"), saved, {**OTHER, "TORCHINDUCTOR_EXAMPLE": "1"})
    assert found["error"] == "package-environment"
    assert "environment variables" in found["message"]


@pytest.mark.reason("package-corrupt")
@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_altered_package_file_is_refused(saved: Path, tmp_path: Path, where: float) -> None:
    data = bytearray(saved.read_bytes())
    at = int(len(data) * where)
    at = next(position for position in range(at, len(data)) if data[position])
    data[at] ^= 1
    altered = tmp_path / "altered"
    altered.write_bytes(data)
    altered.chmod(0o600)
    with pytest.raises(PackageError) as raised:
        portable_format.read(altered)
    assert raised.value.code == "package-corrupt" and str(altered) in raised.value.message


def test_inspect_shows_function_artifacts_and_requirements(shared_host: Host, saved: Path) -> None:
    shown = json.loads(shared_host.command("tools", "package", str(saved), "--json"))
    assert shown["function"] == "program.Net.forward"
    assert len(shown["artifacts"]) == 2
    assert shown["requires"]["torch"]


DYNAMIC = """
import torch
def f(x):
    return torch.cat([torch.mm(x, x), x])
def build():
    x = torch.randn(4, 4)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(x, 1)
    return f, [(x,)]
"""


@pytest.mark.slow
def test_package_file_of_a_dynamic_graph_holds_its_program(shared_host: Host, saved: Path, other: Host) -> None:
    file = shared_host.root / "dynamic.package"
    found = run(
        shared_host, "save", sources(shared_host.root / "dynamic", DYNAMIC), file, {"PRECOMPILED_PACKAGES": "function"}
    )
    assert found["error"] is None, found
    _index, members = portable_format.read(file)
    assert any(name.endswith("/program.json.gz") for name in members)
    assert not any(name.endswith("/program.json.gz") for name in portable_format.read(saved)[1]), (
        "a program has lines of the user"
    )
    with this_process() as here:
        portable._publish_artifacts(here.session, members)
        key = next(name for name in members if name.startswith("artifacts/")).split("/")[1].rpartition(".")[0]
        (entry,) = here.session.store.lookup(key)
        assert entry.manifest.guards
        graph = graphs.eager_of(graphs.program_of(here.session, entry))
        shutil.rmtree(entry.path)  # as if the artifact were evicted, which must not fail a call
        x = torch.randn(6, 6)
        (result,) = graph(6, x)
        torch.testing.assert_close(result, torch.cat([x @ x, x]))
    found = run(other, "load", sources(other.root / "source", DYNAMIC), file, OTHER)
    assert (found["error"], found["equal"], found["states"]) == (None, True, ["used"]), found
