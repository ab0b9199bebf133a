"""The one-line `.pth` file of `precompiled enable`, which switches the hook on in every run of an interpreter.

`site` executes every line of a .pth file that begins with "import". This line must not print or raise, even if
precompiled is uninstalled or broken, or if PRECOMPILED=0 is set.
"""

from __future__ import annotations

import site
import sysconfig
from pathlib import Path

from precompiled.core import durable
from precompiled.core.errors import PrecompiledError
from precompiled.version import OFF

NAME = "precompiled.pth"
# If the line raised, every start of the interpreter would print the exception. A `try` needs several lines, hence
# `exec`.
LINE = (
    f'import os; os.environ.get("PRECOMPILED", "").strip().lower() in {OFF} or exec("try:\\n'
    " import precompiled.bootstrap as bootstrap; bootstrap.install()\\n"
    'except Exception: pass")  # written by `precompiled enable`; `precompiled disable` removes it\n'
)


def site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def user_site() -> Path | None:
    """The user's own site-packages; None if this interpreter ignores that folder (as in most venvs)."""
    return Path(site.getusersitepackages()) if site.ENABLE_USER_SITE else None


def candidates() -> list[Path]:
    """Every path to which `enable` may have written the file."""
    return [directory / NAME for directory in (site_packages(), user_site()) if directory is not None]


def write_files() -> list[Path]:
    return [path for path in candidates() if path.exists()]


def write(directory: Path) -> bool:
    """Write the file into `directory` atomically; False if it exists with the right contents."""
    path = directory / NAME
    try:
        if path.read_text() == LINE:
            return False
    except (OSError, UnicodeDecodeError):
        pass  # absent or unreadable: try to write it
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # The temporary name does not end in ".pth", because no interpreter may execute half a line.
        with durable.replacing(path, 0o644) as file:
            file.write(LINE.encode())
    except OSError as error:
        raise PrecompiledError(
            f"{path} cannot be written: {error.strerror or error}", _other_way(directory), code="not-writable"
        ) from error
    return True


def remove(path: Path) -> bool:
    """Remove the file. Returns False if the file does not exist."""
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
        return "Run `precompiled enable --user`, or use `precompiled run -- CMD`"
    return "Use `precompiled run -- CMD` instead, which needs no file"
