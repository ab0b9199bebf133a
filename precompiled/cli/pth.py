"""The one-line `.pth` that switches the hook on for an interpreter for good.

`site` executes every line of a .pth file that begins with "import". Ours must stay silent in all of an interpreter's
life: when precompiled is uninstalled but the file stays, when it is broken, when PRECOMPILED=0 is set.
"""

from __future__ import annotations

import site
import sysconfig
from pathlib import Path

from precompiled.core import durable
from precompiled.core.errors import PrecompiledError
from precompiled.version import OFF

NAME = "precompiled.pth"
# An exception in a .pth line is printed at each start of the interpreter; a line cannot hold a `try`, a string can.
LINE = (
    f'import os; os.environ.get("PRECOMPILED", "").strip().lower() in {OFF} or exec("try:\\n'
    " import precompiled.bootstrap as bootstrap; bootstrap.install()\\n"
    'except Exception: pass")  # written by `precompiled enable`; `precompiled disable` removes it\n'
)


def site_packages() -> Path:
    """Where this interpreter installs packages."""
    return Path(sysconfig.get_path("purelib"))


def user_site() -> Path | None:
    """The user's own site-packages, None where this interpreter does not look there (as in most venvs)."""
    return Path(site.getusersitepackages()) if site.ENABLE_USER_SITE else None


def candidates() -> list[Path]:
    """Every place where `enable` may have written."""
    return [directory / NAME for directory in (site_packages(), user_site()) if directory is not None]


def written() -> list[Path]:
    """The places that hold the file now."""
    return [path for path in candidates() if path.exists()]


def write(directory: Path) -> bool:
    """Put the file into `directory`, atomically; False when it was there already, as it should be."""
    path = directory / NAME
    try:
        if path.read_text() == LINE:
            return False
    except (OSError, UnicodeDecodeError):
        pass  # absent or unreadable: what matters is whether it can be written
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Its temporary name is not "*.pth": an interpreter that starts meanwhile would execute half a line.
        with durable.replacing(path, 0o644) as file:
            file.write(LINE.encode())
    except OSError as error:
        raise PrecompiledError(
            f"{path} cannot be written: {error.strerror or error}", _other_way(directory), code="not-writable"
        ) from error
    return True


def remove(path: Path) -> bool:
    """Remove the file; False when it was not there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PrecompiledError(
            f"{path} cannot be removed: {error.strerror or error}",
            "Ask its owner to remove it, or set PRECOMPILED=0 in your environment",
            code="not-writable",
        ) from error
    return True


def _other_way(directory: Path) -> str:
    own = user_site()
    if own is not None and own != directory:
        return "Write it for you alone with `precompiled enable --user`, or use `precompiled run -- CMD`"
    return "Use `precompiled run -- CMD` instead, which needs no file"
