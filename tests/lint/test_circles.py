"""Tests that tools/circles.py, which `make lint` runs, finds import circles of every kind of import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CIRCLES = Path(__file__).resolve().parents[2] / "tools" / "circles.py"
BACK = {
    "plain": "from house import cellar",
    "lazy": "def go_down():\n    import house.cellar",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.cellar import Barrel",
    "relative": "def go_down():\n    from .cellar import barrel",
}


def check(folder: Path, **modules: str) -> tuple[int, str]:
    house = folder / "house"
    house.mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (house / f"{name}.py").write_text(text)
    done = subprocess.run([sys.executable, CIRCLES, house], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("kind", BACK)
def test_import_circle_is_found(kind: str, tmp_path: Path) -> None:
    status, said = check(tmp_path, cellar="from house.attic import roof", attic=BACK[kind])
    assert status == 1 and "a circle of 2 modules: house.attic, house.cellar" in said
    assert "cellar.py:1: house.cellar imports house.attic (plain)" in said
    assert f"house.attic imports house.cellar ({kind if kind != 'relative' else 'lazy'})" in said


@pytest.mark.parametrize(
    "look", ["sys.modules.get('house.attic')", "sys.modules['house.attic']", "'house.attic' in sys.modules"]
)
def test_lookup_of_an_own_module_in_sys_modules_is_reported(look: str, tmp_path: Path) -> None:
    status, said = check(tmp_path, cellar=f"import sys\nfound = {look}", attic="")
    assert status == 1 and "cellar.py:2: house.attic is looked up in sys.modules" in said


def test_import_in_one_direction_is_not_a_circle(tmp_path: Path) -> None:
    attic = "import sys\nsys.modules.get('os')"
    assert check(tmp_path, cellar="from house import attic\nimport os", attic=attic) == (0, "")
