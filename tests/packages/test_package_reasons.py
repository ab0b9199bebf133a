"""Tests of each reason for which a trace is not recorded, a package file is not written, or a package file is refused.

The test process is the client and runs Dynamo itself. cases/never_kept.py covers the reasons that depend on the traced
program.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from unittest import mock

import pytest
import torch
from support_session import ThisProcess, deaf_daemon, this_process
from torch._dynamo import convert_frame
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import LocalSource
from torch._guards import Guard

import precompiled
from precompiled import packages
from precompiled.cli import functions
from precompiled.core.errors import CorruptArtifact, PackageError, StoreError
from precompiled.packages import automatic, graphs, portable_format, requirements, source_files
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import dynamo_frames, entry_codec, guard_facts, lazy_switch
from precompiled.packages.function_report import FunctionReport
from precompiled.store import artifact_format
from precompiled.store import package_format as fmt
from precompiled.store.artifacts import Store
from precompiled.store.packages import PackageStore

X = torch.randn(4, 6)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def nothing(x: torch.Tensor) -> torch.Tensor:
    return x


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


# A program has one session, which parses each of its files once. The sessions of this process share the parsed files.
SHARED_TEXTS = mock.patch.object(source_files, "Text", functools.cache(source_files.Text))


@contextmanager
def recording(**settings: str) -> Iterator[ThisProcess]:
    """Start a session with packages on and a daemon that never replies: graphs run eager, and no artifact exists."""
    with deaf_daemon(**{"PRECOMPILED_PACKAGES": "function", **settings}) as here, SHARED_TEXTS:
        packages = automatic.switch_on()
        try:
            yield here
        finally:
            assert packages.flush(60)
            packages.switch_off()


@pytest.fixture
def here() -> Iterator[ThisProcess]:
    with recording() as found:
        yield found


def compiled(function: Callable[..., Any] = double) -> Any:
    """Compile ``function``, call it once, and return the compiled function."""
    torch._dynamo.reset()
    made = torch.compile(function, backend="precompiled")
    torch.testing.assert_close(made(X), function(X))
    return made


def traced(here: ThisProcess) -> FunctionReport:
    """Trace ``double`` and return its report."""
    compiled()
    assert automatic.switch_on().flush(60)
    (report,) = precompiled.package_report()
    if report.reason:
        assert report.state == "traced" and len(report.message.split()) > 2
    return report


def test_recorded_function_has_no_reason(here: ThisProcess) -> None:
    report = traced(here)
    assert (report.state, report.reason) == ("recorded", "")
    assert here.counted("not_kept") == {}


def test_reason_of_a_trace_names_a_check_that_the_call_fails(here: ThisProcess) -> None:
    """Although no artifact exists in this test, that is the reported reason only for a call that the entry's guards
    accept.
    """

    def reason(size: int) -> str:
        torch._dynamo.reset()
        x = torch.randn(4, size)
        torch._dynamo.mark_dynamic(x, 1)
        torch.compile(double, backend="precompiled")(x)
        assert automatic.switch_on().flush(60)
        return "".join(precompiled.package_report()[-1].reasons[:1])

    assert reason(7) == ""
    assert "is not in the store" in reason(9)
    # The guards on sizes also contain ``x.stride()[0] == x.size()[1]``, which holds.
    assert re.fullmatch(r"this call fails a guard: 2 <= L\['x'\]\.size\(\)\[1\].*", reason(1))


class Layers(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_first_reason_of_a_trace_is_of_the_entry_that_explain_calls_nearest(here: ThisProcess) -> None:
    """The entry of the smaller model is newer and has fewer guards that could differ."""
    for number, batch in ((3, 8), (1, 8), (3, 12)):
        torch._dynamo.reset()
        torch.compile(Layers(number), backend="precompiled")(torch.randn(batch, 6))
        assert automatic.switch_on().flush(60)
    reasons = precompiled.package_report()[-1].reasons
    nearest = functions.explain_document(here.session.store, f"{__name__}.Layers.forward")["others"][0]
    assert nearest["changes"] == ["L['x']: sizes [12, 6] here, [8, 6] there"]
    assert reasons[0] == "L['x']: sizes [12, 6] here, [8, 6] when it was traced" and len(reasons) == 2


# ---------------------------------------------------------------- traced but not recorded


@pytest.mark.reason("package-graph")
def test_graph_compiled_in_process_is_not_recorded() -> None:
    with recording(PRECOMPILED_MODE="lookup") as here:
        report = traced(here)
        assert report.reason == "package-graph" and "for this process alone" in report.message
        assert here.counted("not_kept")["package-graph"] == 1


@pytest.mark.reason("package-guard")
@pytest.mark.parametrize("kind", ["DICT_VERSION", "NN_MODULE"])
def test_guard_without_a_check_prevents_recording(kind: str) -> None:
    """A package without one of its guards could give a wrong result, so the trace must not be recorded.

    torch's own packages drop guards that have no check, with a warning.
    """
    guard = Guard(LocalSource("x"), getattr(GuardBuilder, kind))
    reader = guard_facts.SourceReader({"x": {"a": 1}}, globals())
    with pytest.raises(NotPortable, match=rf"no check exists for the guard {kind} on L\['x'\]") as raised:
        guard_facts.facts([guard], reader, Descriptions())
    assert raised.value.code == "package-guard"


@pytest.mark.reason("package-id")
def test_string_with_a_memory_address_prevents_recording(here: ThisProcess) -> None:
    def named(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x * 2, str(double)

    torch._dynamo.reset()
    assert torch.compile(named, backend="precompiled")(X)[1] == str(double)
    assert automatic.switch_on().flush(60)
    (report,) = precompiled.package_report()
    assert report.reason == "package-id" and "an address of this process" in report.message


@runtime_checkable
class Scaled(Protocol):
    def scale(self) -> None: ...


class Thing:
    def __init__(self, scale: object) -> None:
        self.scale = scale


THING = Thing(len)


@pytest.mark.reason("package-not-portable")
def test_frame_skipped_because_of_a_runtime_protocol_is_not_recorded(here: ThisProcess) -> None:
    def left(x: torch.Tensor) -> torch.Tensor:
        return x if isinstance(THING, Scaled) else x * 2

    torch._dynamo.reset()
    torch.compile(left, backend="precompiled")(X)
    report = next(item for item in precompiled.package_report() if item.name.endswith("left"))
    assert (report.state, report.reason) == ("traced", "package-not-portable") and "protocol Scaled" in report.message


@pytest.mark.reason("package-passing")
def test_frame_skipped_for_one_call_is_not_recorded(here: ThisProcess) -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(suppress_errors=True):
        torch.compile(nothing)(X)  # the function has no operation, so Dynamo skips its frame
    (report,) = precompiled.package_report()
    assert report.reason == "package-passing" and "skip it only this time" in report.message


@pytest.mark.reason("package-off")
def test_packages_switched_off_by_setting_are_not_recorded() -> None:
    with recording(PRECOMPILED_PACKAGES="0") as here:
        report = traced(here)
        assert report.reason == "package-off" and "PRECOMPILED_PACKAGES=program" in report.message
        assert not (here.session.store.root / "packages").exists()


@pytest.mark.reason("package-internal-error")
def test_internal_error_is_reported_and_counted(here: ThisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(entry_codec, "encode", broken)
    report = traced(here)
    assert (report.reason, report.message) == ("package-internal-error", "a bug of ours")
    assert here.counted("not_kept") == {"package-internal-error": 1}


@pytest.mark.reason("package-too-large")
def test_entry_above_the_size_limit_is_not_recorded(here: ThisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmt, "MAX_ENTRY_BYTES", 100)
    report = traced(here)
    assert report.reason == "package-too-large" and "the package entry of double has" in report.message
    assert list(PackageStore(here.session.store.root).entries()) == []


@pytest.mark.reason("package-unwritable")
def test_unwritable_store_is_reported_with_the_command_to_run(here: ThisProcess) -> None:
    root = here.session.store.root
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / "packages").write_text("a file is in the way")
    report = traced(here)
    assert report.reason == "package-unwritable" and f"cannot be written to {root}" in report.message
    assert "precompiled cache gc" in report.message


@pytest.mark.reason("package-unsupported")
def test_torch_without_a_required_function_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(convert_frame, "has_tensor_in_frame")
    monkeypatch.setattr(lazy_switch, "problem", None)
    with this_process():
        with pytest.raises(NotPortable, match="this torch has no has_tensor_in_frame") as raised:
            dynamo_frames.install(automatic.Automatic())
        assert raised.value.code == "package-unsupported"
        with mock.patch.object(lazy_switch.log, "warning") as warned:
            packages.install()
        assert "has_tensor_in_frame" in str(warned.call_args) and "has_tensor_in_frame" in str(lazy_switch.problem)
    assert not dynamo_frames._patches, "no function of Dynamo may be replaced"


# ---------------------------------------------------------------- entries in the store


def entry(**more: Any) -> fmt.Header:
    function = fmt.function_key("program", "f", "0" * 64, one_graph=False)
    return fmt.Header(function, "program", "f", "0" * 64, False, "compiled", {}, **more)


@pytest.mark.reason("package-format")
def test_entry_of_another_format_is_refused_and_kept(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    header = entry(format=fmt.FORMAT + 1)
    name = store.publish(header, b"{}", b"body")
    with pytest.raises(CorruptArtifact, match=f"of format {fmt.FORMAT + 1}, this is format {fmt.FORMAT}") as raised:
        store.read(header.function, name)
    assert raised.value.code == "package-format"
    assert store.names(header.function) == [name], "an entry of another version must stay"


@pytest.mark.reason("package-corrupt")
def test_altered_entry_is_refused_and_the_function_traced(here: ThisProcess) -> None:
    traced(here)
    (kept,) = PackageStore(here.session.store.root).entries()
    kept.path.write_bytes(kept.path.read_bytes()[:-1] + b"!")
    compiled()
    again = precompiled.package_report()[-1]
    assert again.state == "recorded" and "does not match its digest" in again.reasons[0]
    with pytest.raises(CorruptArtifact) as raised:
        fmt.open_entry(kept.name, b"something else", kept.header.function)
    assert raised.value.code == "package-corrupt"


def test_artifact_that_fails_to_load_leaves_the_programs_globals_unchanged(here: ThisProcess) -> None:
    traced(here)
    asked = mock.Mock(side_effect=StoreError("it cannot be loaded"))
    with mock.patch.object(Store, "lookup", return_value=["an artifact"]), mock.patch.object(graphs, "load", asked):
        compiled()
    asked.assert_called_once()
    assert "it cannot be loaded" in precompiled.package_report()[-1].reasons[0]
    assert [name for name in double.__globals__ if name.startswith("__precompiled_")] == []


@pytest.mark.reason("artifact-program")
def test_artifact_for_some_sizes_needs_its_program(here: ThisProcess) -> None:
    manifest = artifact_format.Manifest(
        key="1" * 64,
        name="double",
        components={"graph": "0"},
        environment={},
        device="cpu",
        guards="s0 < 8",
        files={},
        compile_s=1.0,
        created=0.0,
        compiled_by={},
    )
    store = here.session.store
    without = store.publish(artifact_format.Payload(manifest, {artifact_format.BUNDLE: b"e"}))
    # The error comes before Dynamo uses the package, so Dynamo can still trace. If the error came later, it would reach
    # the program at a call with a different size.
    with pytest.raises(StoreError, match=r"does not say what it was compiled from\. Save the package again") as raised:
        graphs.program_of(here.session, without)
    assert raised.value.code == "artifact-program"


# ---------------------------------------------------------------- package files: save


def refused(code: str, call: Callable[..., Any], *args: Any) -> str:
    """Check that ``call`` raises a PackageError with ``code``, a message and an action. Returns the message."""
    with pytest.raises(PackageError) as raised:
        call(*args)
    assert raised.value.code == code, raised.value
    assert len(raised.value.message.split()) > 2 and raised.value.action
    return raised.value.message


@pytest.mark.reason("package-not-compiled")
def test_save_refuses_functions_that_precompiled_did_not_compile(here: ThisProcess, tmp_path: Path) -> None:
    file = tmp_path / "file"
    said = refused("package-not-compiled", precompiled.save_package, double, file)
    assert said == "the argument is not what torch.compile() returns for a function or module"
    other = torch.compile(double, backend="eager")
    assert "backend is not inductor" in refused("package-not-compiled", precompiled.load_package, other, file)


@pytest.mark.reason("package-busy")
def test_save_fails_while_entries_are_written(
    here: ThisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, written = compiled(), threading.Event()
    packages = automatic.switch_on()
    flush = packages.flush
    with monkeypatch.context() as patch:
        patch.setattr(packages, "flush", lambda timeout_s: flush(0.01))
        packages.publisher.publish(written.wait, lambda error: None)
        try:
            said = refused("package-busy", precompiled.save_package, made, tmp_path / "file")
        finally:
            written.set()
    assert said == "the recorded entries are not written yet"


@pytest.mark.reason("package-empty")
def test_save_without_entries_gives_the_reason(tmp_path: Path) -> None:
    with recording(PRECOMPILED_PACKAGES="0"):
        said = refused("package-empty", precompiled.save_package, compiled(), tmp_path / "file")
    assert said.startswith("the function has no recorded entries (") and "package-off" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reason("package-evicted")
def test_save_after_eviction_fails(here: ThisProcess, tmp_path: Path) -> None:
    made = compiled()
    assert automatic.switch_on().flush(60)
    assert PackageStore(here.session.store.root).clear() == 1
    said = refused("package-evicted", precompiled.save_package, made, tmp_path / "file")
    assert "was evicted" in said
    torch.compiler.reset()  # the error advises this action
    made(X)
    refused("package-artifact-missing", precompiled.save_package, made, tmp_path / "file")  # no longer package-evicted
    assert PackageStore(here.session.store.root).clear() == 1


@pytest.mark.reason("package-artifact-missing")
def test_save_before_the_artifacts_exist_fails(here: ThisProcess, tmp_path: Path) -> None:
    said = refused("package-artifact-missing", precompiled.save_package, compiled(), tmp_path / "file")
    assert "is not in the store" in said


@pytest.mark.reason("package-unwritable")
@pytest.mark.parametrize("place", ["absent/file", "not a folder/file"])
def test_unwritable_package_file_is_an_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "not a folder").write_text("a file")
    said = refused("package-unwritable", portable_format.write, tmp_path / place, INDEX, {})
    assert str(tmp_path / place) in said


# ---------------------------------------------------------------- package files: load

INDEX = portable_format.Index(double.__module__, double.__qualname__, code_digest(double.__code__), {}, [])


def load(path: Path, function: Callable[..., Any] = double) -> int:
    return precompiled.load_package(torch.compile(function, backend="precompiled"), str(path))


@pytest.fixture
def file(here: ThisProcess, tmp_path: Path) -> Path:
    """Write a package file for ``double`` that has no entries. The tested checks come before entries are read."""
    path = tmp_path / "file"
    portable_format.write(path, replace(INDEX, requires=requirements.requirements({})), {})
    return path


def test_matching_package_file_is_accepted(file: Path) -> None:
    assert load(file) == 0


@pytest.mark.reason("package-corrupt")
@pytest.mark.parametrize("member", ["entries/in no folder", f"artifacts/{'1' * 64}.0/without a manifest"])
def test_package_file_with_unknown_members_is_refused(file: Path, member: str) -> None:
    portable_format.write(file, replace(INDEX, requires=requirements.requirements({})), {member: b"data"})
    assert "other members than a package" in refused("package-corrupt", load, file)


@pytest.mark.reason("package-missing")
@pytest.mark.parametrize("place", ["absent", "absent/file"])
def test_missing_package_file_is_an_error(here: ThisProcess, tmp_path: Path, place: str) -> None:
    assert refused("package-missing", load, tmp_path / place) == f"{tmp_path / place} does not exist"


@pytest.mark.reason("package-untrusted")
def test_package_file_that_others_can_write_is_refused(file: Path) -> None:
    file.chmod(0o666)
    assert "a package file is code" in refused("package-untrusted", load, file)


@pytest.mark.reason("package-corrupt")
@pytest.mark.parametrize("where", [0, 512, 1000])
def test_altered_package_file_is_refused(file: Path, where: int) -> None:
    data = bytearray(file.read_bytes())
    data[where] ^= 1
    file.write_bytes(data)
    assert str(file) in refused("package-corrupt", load, file)


@pytest.mark.reason("package-corrupt")
def test_truncated_package_file_is_refused(file: Path) -> None:
    os.truncate(file, 700)
    assert "is not a package file" in refused("package-corrupt", load, file)


@pytest.mark.reason("package-format")
def test_package_file_of_another_format_is_refused(file: Path) -> None:
    portable_format.write(file, replace(INDEX, format=portable_format.FORMAT + 1), {})
    said = refused("package-format", load, file)
    assert f"has format {portable_format.FORMAT + 1}, this is format {portable_format.FORMAT}" in said


@pytest.mark.reason("package-function")
def test_package_file_for_another_function_is_refused(file: Path) -> None:
    said = refused("package-function", load, file, triple)
    assert f"is for {double.__module__}.double, not for {double.__module__}.triple" in said


@pytest.mark.reason("package-source")
def test_package_file_for_another_source_is_refused(file: Path) -> None:
    portable_format.write(file, replace(INDEX, code=code_digest(triple.__code__)), {})
    said = refused("package-source", load, file)
    assert f"the source of {double.__module__}.double has changed" in said


@pytest.mark.reason("package-environment")
def test_package_file_for_another_torch_is_refused(file: Path) -> None:
    requires = {**requirements.requirements({}), "torch": "1.0"}
    portable_format.write(file, replace(INDEX, requires=requires), {})
    said = refused("package-environment", load, file)
    assert "is for another torch: 1.0, and here is " in said
