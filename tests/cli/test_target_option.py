"""Tests of the errors of `--target`: for an unknown kind, or a torch that cannot have a made-up device.

Each error must come before the command runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from support_cli import answer

from precompiled.core.errors import PrecompiledError
from precompiled.made_up_cuda import build, targets


@pytest.mark.parametrize(
    ("text", "code", "count"),
    [("h100", "h100", 1), ("H200x8", "h200", 8), ("cuda:sm_80", "a100", 1), ("sm_100x2", "b200", 2)],
)
def test_a_target_has_a_kind_and_a_number(text: str, code: str, count: int) -> None:
    found = targets.parse(text)
    assert (found.kind.code, found.count) == (code, count)


@pytest.mark.reason("unknown-target")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x100", "not a kind"),
        ("cuda:sm_90", "h100 and h200"),
        ("sm_70", "not the architecture"),
        ("h100x0", "not a kind"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("command", [("run",), ("bake", "-o", "nowhere")])
def test_the_error_for_an_unknown_target_lists_the_kinds(command: tuple[str, ...], text: str, said: str) -> None:
    error = answer(*command, "--json", "--target", text, "--", "true", status=1)["error"]
    assert error["code"] == "unknown-target" and said in error["message"]
    assert "a100 (NVIDIA A100-SXM4-80GB, sm_80)" in error["action"]


@pytest.mark.reason("target-unavailable")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is a CUDA build; its errors are below")
@pytest.mark.parametrize("command", ["run", "bake"])
def test_a_torch_without_cuda_is_an_error_before_the_command_runs(command: str, tmp_path: Path) -> None:
    ran, base = tmp_path / "ran", tmp_path / "base"
    options = ["-o", str(base)] if command == "bake" else []
    text = f"open({str(ran)!r}, 'w')"
    error = answer(command, "--json", *options, "--target", "h100", "--", sys.executable, "-c", text, status=1)["error"]
    assert error["code"] == "target-unavailable" and "is not a CUDA build" in error["message"]
    assert "neither a GPU nor a driver" in error["action"]
    assert not ran.exists() and list(tmp_path.iterdir()) == []


def test_target_needs_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECOMPILED", "0")
    assert answer("run", "--json", "--target", "h100", "--", "true", status=2)["error"]["code"] == "usage"


def test_the_error_names_what_a_build_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "site-packages" / "torch"
    (root / "include").mkdir(parents=True)
    with pytest.raises(build.CannotBuild, match=r"cuda_runtime_api\.h is not in") as headers:
        build.check(build.Torch(root))
    assert "wheels" in headers.value.action
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(build.CannotBuild, match=r"g\+\+ is not on PATH") as compiler:
        build.check(build.Torch(root))
    assert "apt install g++" in compiler.value.action


def test_the_interpreter_of_a_command_is_found(tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    script.write_text(f"#!{sys.executable}\nprint()\n")
    script.chmod(0o755)
    shell = tmp_path / "train.sh"
    shell.write_text("#!/bin/sh\n")
    shell.chmod(0o755)
    assert targets.interpreter([sys.executable, "x.py"]) == sys.executable
    assert targets.interpreter([str(script)]) == sys.executable
    assert targets.interpreter([str(shell)]) is None and targets.interpreter(["no-such-command"]) is None


@pytest.mark.reason("target-unavailable")
def test_an_interpreter_without_precompiled_is_an_error(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(PrecompiledError) as error:
        targets.build(str(bare))
    assert error.value.code == "target-unavailable" and "precompiled" in error.value.action
