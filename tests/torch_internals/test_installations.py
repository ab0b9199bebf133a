"""Tests that the digest of an installed package depends on the files of the package and on nothing else."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from precompiled.torch_internals.user_code import installations, user_modules

RECORD = {
    "installed_ops/__init__.py": "sha256=a,1",
    "installed_ops/rules.py": "sha256=b,2",
    "other/__init__.py": "sha256=d,4",
    "../../../bin/tool": "sha256=e,5",
    "installed_ops/__pycache__/rules.cpython-311.pyc": ",",
    "Installed-1.dist-info/INSTALLER": "sha256=f,6",
}
Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Returns a function that writes a distribution and returns its digest. The arguments change lines of the
    distribution's RECORD.

    Each digest reads all distributions on ``sys.path``, so the test keeps this Python's own distributions off the path.
    """
    monkeypatch.syspath_prepend(str(tmp_path))  # restores the whole list after the test
    sys.path[:] = [path for path in sys.path if "site-packages" not in path]

    def found(name: str = "Installed", **changed: str) -> str:
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir(exist_ok=True)
        lines = {**RECORD, **changed}
        (folder / "RECORD").write_text("".join(f"{path},{fields}\n" for path, fields in lines.items()))
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (folder / "top_level.txt").write_text("installed_ops\n")
        installations.digest.cache_clear()
        return installations.digest("installed_ops")

    return found


def test_changed_file_changes_the_digest(install: Install) -> None:
    first = install()
    assert first
    assert install(**{"installed_ops/rules.py": "sha256=x,2"}) != first
    assert install(**{"installed_ops/more.so": "sha256=y,2"}) != first


@pytest.mark.parametrize("path", ["other/__init__.py", "../../../bin/tool", "Installed-1.dist-info/INSTALLER"])
def test_files_outside_of_the_package_do_not_count(install: Install, path: str) -> None:
    assert install() == install(**{path: "sha256=x,2"})


def test_package_without_an_installation_has_no_digest() -> None:
    assert installations.digest("nobody_installed_this") == ""
    assert installations.digest("torch") == installations.digest("json") == "", "their versions are in the key"


def test_installation_is_in_the_digest_of_modules_that_import_it(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the root file of the package counted, a new version could get artifacts of an old version."""
    site = tmp_path / "site"
    (site / "installed_ops").mkdir(parents=True)
    (site / "installed_ops" / "__init__.py").write_text("")
    (tmp_path / "imports_installed.py").write_text("import installed_ops\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(user_modules, "_INSTALLED", (str(site),))
    monkeypatch.setattr(user_modules, "earliest_load", lambda *_: math.inf)
    for module in ("installed_ops", "imports_installed"):
        install()
        first = user_modules.modules_digest([module])
        assert user_modules.modules_digest([module]) == first
        install(**{"installed_ops/rules.py": "sha256=x,2"})
        assert user_modules.modules_digest([module]) != first
