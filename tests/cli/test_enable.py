"""Tests that `precompiled enable` writes a working .pth line to site-packages, in new virtual environments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from precompiled.cli import pth
from precompiled.core.errors import PrecompiledError
from precompiled.version import OFF

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "import sys; b = sys.modules.get('precompiled.bootstrap'); print(b.state() if b else 'absent')"


class Interpreter:
    """A virtual environment with precompiled and with click, which the command line needs."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = str(folder / "bin" / "python")
        self.site = Path(self.ask("import sysconfig; print(sysconfig.get_path('purelib'))"))
        import click

        # Python reads .pth files in the order of their names. a_sources.pth is read before precompiled.pth, whose line
        # imports precompiled.
        (self.site / "a_sources.pth").write_text(f"{ROOT}\n")
        (self.site / "click").symlink_to(Path(click.__file__).parent)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECOMPILED", "PYTHONP"))}
        return subprocess.run(
            [self.python, *arguments],
            env={**kept, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def ask(self, code: str = QUESTION, *flags: str, **environment: str) -> str:
        done = self.run(*flags, "-c", code, **environment)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout.strip()

    def precompiled(self, *arguments: str, status: int = 0, **environment: str) -> dict[str, object]:
        done = self.run("-m", "precompiled", *arguments, "--json", **environment)
        assert done.returncode == status, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    return Interpreter(tmp_path / "venv")


def test_enable_and_disable(interpreter: Interpreter) -> None:
    path = interpreter.site / "precompiled.pth"
    assert interpreter.ask() == "absent"
    found = interpreter.precompiled("enable")
    assert found["path"] == str(path) and found["changed"] is True
    assert path.read_text().count("\n") == 1 and path.stat().st_mode & 0o777 == 0o644
    assert interpreter.ask() == "waiting"
    assert interpreter.precompiled("enable")["changed"] is False
    assert [item.name for item in interpreter.site.iterdir() if "precompiled" in item.name] == ["precompiled.pth"]
    assert interpreter.precompiled("disable")["removed"] == [str(path)]
    assert interpreter.ask() == "absent" and not path.exists()
    assert interpreter.precompiled("disable")["changed"] is False


def test_off_values_and_option_s_switch_an_enabled_interpreter_off(interpreter: Interpreter) -> None:
    interpreter.precompiled("enable")
    for value in (*OFF, " Off"):
        assert interpreter.ask(QUESTION, PRECOMPILED=value) == "absent"
    assert interpreter.ask(QUESTION, PRECOMPILED="of") == "waiting"
    assert interpreter.ask(QUESTION, "-S") == "absent"
    for flag in ("-I", "-E", "-s"):
        assert interpreter.ask(QUESTION, flag) == "waiting"


def test_the_line_works_twice_and_beside_sitecustomize(interpreter: Interpreter) -> None:
    interpreter.precompiled("enable")
    (interpreter.site / "zz_again.pth").write_text(pth.LINE)
    count = "import sys; print(sum(type(f).__name__ == '_TorchFinder' for f in sys.meta_path))"
    assert interpreter.ask(count) == "1"
    assert interpreter.ask(count, PYTHONPATH=str(ROOT / "precompiled" / "sitecustomize")) == "1"


@pytest.mark.parametrize("broken", [None, "", "syntax error", "raise RuntimeError('ours')"])
def test_the_line_is_silent_if_the_package_is_missing_or_broken(
    interpreter: Interpreter, tmp_path: Path, broken: str | None
) -> None:
    interpreter.precompiled("enable")
    sources = tmp_path / "sources"
    if broken is not None:
        (sources / "precompiled").mkdir(parents=True)
        (sources / "precompiled" / "__init__.py").write_text(broken)
    (interpreter.site / "a_sources.pth").write_text(f"{sources}\n")
    with (interpreter.site / "precompiled.pth").open("a") as file:
        file.write("import sys; sys.after = 1\n")  # shows whether Python still runs the next line
    assert interpreter.ask("import sys; print(sys.after)") == "1"


def test_enable_repairs_an_altered_file(interpreter: Interpreter) -> None:
    (interpreter.site / "precompiled.pth").write_text("import os  # of an older version\n")
    assert interpreter.precompiled("enable")["changed"] is True
    assert interpreter.ask() == "waiting"


@pytest.mark.reason("hook")
def test_enable_fails_and_removes_the_file_if_the_hook_stays_off(interpreter: Interpreter) -> None:
    # Only this PYTHONPATH makes precompiled importable. In other shells the hook would stay off.
    (interpreter.site / "a_sources.pth").unlink()
    error = interpreter.precompiled("enable", status=1, PYTHONPATH=str(ROOT))["error"]
    assert isinstance(error, dict) and error["code"] == "hook"
    assert not (interpreter.site / "precompiled.pth").exists()


@pytest.mark.reason("two-distributions")
def test_unrelated_project_of_the_same_name_is_detected(interpreter: Interpreter) -> None:
    """Both projects install the folder ``precompiled/``. An editable install of precompiled under its earlier name has
    no files there, so it does not count as a conflict.
    """
    unrelated = interpreter.site / "precompiled-0.1.11.dist-info"
    unrelated.mkdir()
    (unrelated / "METADATA").write_text("Metadata-Version: 2.1\nName: precompiled\nVersion: 0.1.11\n")
    (unrelated / "RECORD").write_text("__editable__.precompiled-0.1.11.pth,,\n")
    interpreter.precompiled("enable")
    interpreter.precompiled("disable")
    (unrelated / "RECORD").write_text("precompiled/__init__.py,,\nprecompiled-0.1.11.dist-info/METADATA,,\n")
    error = interpreter.precompiled("enable", status=1)["error"]
    assert isinstance(error, dict) and error["code"] == "two-distributions"
    assert "0.1.11" in error["message"] and f"{interpreter.python} -m pip uninstall precompiled" in error["action"]
    assert interpreter.ask() == "absent"


@pytest.mark.reason("no-user-site")
def test_user_option_fails_in_a_virtual_environment(interpreter: Interpreter) -> None:
    error = interpreter.precompiled("enable", "--user", status=1)["error"]
    assert isinstance(error, dict) and error["code"] == "no-user-site" and "--user" in error["action"]


@pytest.mark.reason("not-writable")
def test_enable_fails_if_the_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PrecompiledError) as caught:
        pth.write(tmp_path / "file")
    assert caught.value.code == "not-writable" and "precompiled run" in caught.value.action
    with pytest.raises(PrecompiledError):
        pth.remove(tmp_path / "file" / pth.NAME)


def test_the_line_is_one_that_site_executes() -> None:
    assert pth.LINE.startswith("import ") and pth.LINE.isascii() and pth.LINE.count("\n") == 1
    compile(pth.LINE, pth.NAME, "exec")
    assert sys.version_info >= (3, 10)
