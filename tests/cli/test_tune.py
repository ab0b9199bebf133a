"""Tests that `precompiled tools tune` recompiles and replaces artifacts that were compiled without measurements.

These tests do not need a GPU, because they mark a CPU artifact as compiled without measurements.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support_host import Host

from precompiled.cli.output import Output
from precompiled.core.errors import PrecompiledError
from precompiled.made_up_cuda import tune
from precompiled.store import artifact_format as fmt

pytestmark = pytest.mark.integration

SPEC = {"model": "mlp", "training": False}


def make_untimed(host: Host) -> str:
    """Mark the host's only artifact as compiled without a GPU. Returns its key."""
    (artifact,) = host.store.all_artifacts()
    sealed = fmt.seal(dataclasses.replace(artifact.manifest, tier=fmt.UNTIMED))
    (artifact.path / fmt.MANIFEST).write_bytes(sealed)
    return artifact.manifest.key


def test_an_untuned_artifact_is_recompiled_and_preferred(served: Host) -> None:
    served.run(SPEC)
    key = make_untimed(served)
    assert served.run(SPEC)["reports"][0]["source"] == "hit", "the untuned artifact is used until then"
    assert served.answer({}, "tools", "tune", key[:12]) == {"tuned": [key], "left": {}}
    assert [artifact.manifest.tier for artifact in served.store.lookup(key)] == [fmt.DEFAULT]
    assert served.answer({}, "tools", "tune") == {"tuned": [], "left": {}}
    assert served.run(SPEC)["reports"][0]["source"] == "hit"


def test_an_artifact_of_another_environment_is_not_recompiled(served: Host) -> None:
    served.run(SPEC)
    key = make_untimed(served)
    answer = served.answer({"ATEN_CPU_CAPABILITY": "default"}, "tools", "tune", status=1)
    assert answer["tuned"] == [] and "this environment differs" in answer["left"][key]
    assert len(served.store.lookup(key)) == 1


def test_an_artifact_without_its_graph_is_not_recompiled(served: Host) -> None:
    served.run(SPEC)
    (artifact,) = served.store.all_artifacts()
    files = {name: record for name, record in artifact.manifest.files.items() if name != fmt.PROGRAM}
    sealed = fmt.seal(dataclasses.replace(artifact.manifest, tier=fmt.UNTIMED, files=files))
    (artifact.path / fmt.MANIFEST).write_bytes(sealed)
    answer = served.answer({}, "tools", "tune", status=1)
    assert answer["left"][artifact.manifest.key] == "its graph was not kept"


def nvidia_smi(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)


def test_tune_waits_until_the_gpu_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake nvidia-smi reports a GPU use of 97 % twice, and then of 0 %."""
    monkeypatch.setattr(tune, "LOOK_S", 0.0)
    monkeypatch.setattr(tune, "BUSY_S", 0.0)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    asked = tmp_path / "asked"
    nvidia_smi(tmp_path / "bin", f'echo "$1" >> {asked}; [ $(/usr/bin/wc -l < {asked}) -gt 2 ] && echo 0 || echo 97')
    tune.wait_until_idle("GPU-1", Output(False))
    assert asked.read_text().splitlines() == ["--id=GPU-1"] * (2 + tune.LOOKS)


@pytest.mark.reason("gpu-use-unknown")
def test_tune_fails_if_nvidia_smi_does_not_report_the_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path / "bin", "echo '[N/A]'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(PrecompiledError, match=r"\[N/A\]") as error:
        tune.wait_until_idle("GPU-1", Output(False))
    assert error.value.code == "gpu-use-unknown"
