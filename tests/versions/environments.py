"""Virtual environments with other torch versions, created once and kept outside of the repository.

``PRECOMPILED_TEST_VENVS`` lists folders of existing environments, separated by ":". Each of these environments must
have torch, precompiled and the requirements of its tests. Other versions are installed below
``PRECOMPILED_TEST_VENV_CACHE`` (default: ``$XDG_CACHE_HOME/precompiled-tests``). An installation takes a minute and
some GB, and is repeated when the requirements change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_S = 1800.0
# PROBE imports what clients in an environment need, so it also checks a finished installation.
PROBE = "import precompiled, precompiled.service, psutil, torch, transformers; print(torch.__version__.split('+')[0])"


class Unavailable(Exception):
    """No environment with this torch version exists, and none can be created. The message says why."""


# A version that failed in this run is not tried again, because an attempt takes long.
_unavailable: dict[str, Unavailable] = {}


def python_of(version: str, *, may_install: bool = True) -> str:
    """Return the interpreter of an environment with this torch version. Raise Unavailable if no such environment can be
    made.
    """
    if version in _unavailable:
        raise _unavailable[version]
    try:
        return _given().get(version) or _own().get(version) or _made(version, may_install)
    except Unavailable as error:
        _unavailable[version] = error
        raise


@cache
def _given() -> dict[str, str]:
    found = {}
    for folder in filter(None, os.environ.get("PRECOMPILED_TEST_VENVS", "").split(":")):
        python = os.path.join(folder, "bin", "python")
        try:
            found[_probe(python)] = python
        except Unavailable as error:
            # The user has named this environment, so report the error and do not start an installation.
            raise Unavailable(f"PRECOMPILED_TEST_VENVS names {folder}: {error}") from error
    return found


@cache
def _own() -> dict[str, str]:
    """The environment of this test run."""
    try:
        return {_probe(sys.executable): sys.executable}
    except Unavailable:  # it lacks what the programs of these tests need
        return {}


def _probe(python: str) -> str:
    """Return the torch version of a usable environment."""
    try:
        # Run in a different folder, so that the environment's own installation is imported and not this checkout.
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=300, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{python} does not run: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{python}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout.strip()


@cache
def _made(version: str, may_install: bool) -> str:
    base = os.environ.get("PRECOMPILED_TEST_VENV_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "precompiled-tests")
    needs = [f"torch=={version}", *_dependencies()]
    stamp = hashlib.sha256("\n".join([sys.version, *needs]).encode()).hexdigest()
    folder = Path(base) / f"torch-{version}"
    python = folder / "bin" / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f"{folder.name}.lock"):
            # The stamp is written last, so an interrupted installation has no stamp.
            written = folder / "stamp"
            if not written.exists() or written.read_text() != stamp:
                if not may_install:
                    raise Unavailable(f"{folder} is missing or out of date (make test-versions installs it)")
                _install(folder, python, needs)
                written.write_text(stamp)
            # Several checkouts share an environment, and an earlier checkout may be gone. The editable install must
            # therefore point to the current checkout.
            place, installed = folder / "checkout", f"torch-precompiled {ROOT}"
            if not place.exists() or place.read_text() != installed:
                # An earlier commit installed the distribution under this name.
                _run([str(python), "-m", "pip", "uninstall", "-qq", "--yes", "precompiled"])
                _pip(python, "--no-deps", "-e", str(ROOT))
                if (has := _probe(str(python))) != version:
                    raise Unavailable(f"pip installed torch {has} for torch=={version}")
                place.write_text(installed)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be made: {error}") from error
    return str(python)


def _dependencies() -> list[str]:
    """Return the requirements of the project and its tests, without the project itself, which is installed as
    editable.
    """
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10 has no tomllib
        import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["test"]]


def _install(folder: Path, python: Path, requirements: list[str]) -> None:
    print(f"\nmaking {folder} ({' '.join(requirements)}): minutes, once", file=sys.__stderr__, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _pip(python, *requirements)


def _pip(python: Path, *arguments: str) -> None:
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command)}: not done after {INSTALL_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on ``path``, so that one process of a parallel test run installs while the others wait."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
