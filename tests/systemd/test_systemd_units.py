"""Tests of the unit files and their installer, which need neither a booted systemd nor root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from precompiled.systemd import install

from precompiled.core.errors import ConfigError

KINDS = ("system", "user")


def run_installer(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "precompiled.systemd.install", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def settings_of(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_unit_passes_systemd_analyze_verify(kind: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = install.install(kind, tmp_path, sys.executable)
    command = ["systemd-analyze", *(["--user"] if kind == "user" else []), "--man=no", "verify", str(unit)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # --user needs this variable
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_unit_stays_within_the_security_score(tmp_path: Path) -> None:
    """If this test fails, the unit has become less strict. Give the reason in the unit, and the new score in
    docs/guides/systemd.md.

    The threshold (in tenths) leaves room for checks of later systemd versions.
    """
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = install.install("system", tmp_path, sys.executable)
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=30", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a file (systemd 250 can)")
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_interpreter_is_filled_in(kind: str) -> None:
    text = install.render(kind, "/opt/an environment/50%/bin/python")
    assert install.PLACEHOLDER not in text
    (command,) = settings_of(text)["ExecStart"]
    assert command.startswith('"/opt/an environment/50%%/bin/python" ')


def test_plain_interpreter_is_not_quoted() -> None:
    assert install.quote("/usr/bin/python3") == "/usr/bin/python3"


@pytest.mark.parametrize("path", ["python3", "/opt/a\nUser=root/python", ""])
def test_interpreter_path_that_a_unit_cannot_hold_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        install.quote(path)


def test_restrictions_that_break_a_jit_or_gpu_stay_off() -> None:
    """Each restriction that this test keeps off has broken a compile or hidden a GPU. The unit file gives the
    reasons.
    """
    unit = settings_of(install.render("system", sys.executable))
    assert unit["PrivateDevices"] == ["no"]
    assert unit["DevicePolicy"] == ["auto"]
    assert "DeviceAllow" not in unit
    assert unit["ProtectClock"] == ["no"]
    assert unit["MemoryDenyWriteExecute"] == ["no"]
    assert unit["PrivateTmp"] == ["no"]


def test_print_shows_the_unit_and_writes_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = run_installer("--user", "--print", env=environment)
    assert done.stdout == install.render("user", sys.executable)
    assert list(tmp_path.iterdir()) == []


def test_install_below_a_prefix_and_uninstall(tmp_path: Path) -> None:
    done = run_installer("--prefix", str(tmp_path), "--trust-writable")
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "etc/systemd/system/precompiled.service"
    assert unit.read_text() == install.render("system", sys.executable)
    assert unit.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in unit.parent.iterdir()] == ["precompiled.service"]
    done = run_installer("--prefix", str(tmp_path), "--uninstall")
    assert done.returncode == 0, done.stderr
    assert list(unit.parent.iterdir()) == []


def test_only_root_installs_the_system_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(install.main, [])
    assert result.exit_code == 1
    assert "only root can install the system daemon" in result.output
    assert "--user" in result.output


def test_root_refuses_files_that_others_can_change(tmp_path: Path) -> None:
    safe = tmp_path / "safe"
    (safe / "inner").mkdir(parents=True)
    owner = os.geteuid()
    before = install.writable_by_others([str(safe / "inner")], owner)
    (safe / "inner" / "module.py").write_text("")
    (safe / "inner").chmod(0o777)
    (safe / "link").symlink_to(safe / "inner")
    after = install.writable_by_others([str(safe / "link" / "module.py")], owner)
    assert set(after) - set(before) == {str(safe / "inner")}


def test_file_of_another_owner_is_reported(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("")
    found = install.writable_by_others([str(module)], os.geteuid())
    assert str(module) not in found
    if os.geteuid() != 0:
        assert str(module) in install.writable_by_others([str(module)], owner=0)
    else:
        os.chown(module, 12345, 0)
        assert str(module) in install.writable_by_others([str(module)], owner=0)


def test_interpreter_without_precompiled_is_refused() -> None:
    bare = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    command = [str(bare), "-I", "-c", "import precompiled"]
    if bare is None or subprocess.run(command, capture_output=True, check=False).returncode == 0:
        pytest.skip("no interpreter without precompiled here")
    with pytest.raises(ConfigError, match="cannot import precompiled"):
        install.check_interpreter("system", bare)
