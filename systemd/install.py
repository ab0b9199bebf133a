"""Installs the systemd unit for the interpreter that runs this module: ``python -m precompiled.systemd.install``.

::

    python -m precompiled.systemd.install               the system daemon, as root: /etc/systemd/system
    python -m precompiled.systemd.install --user        the user daemon: ~/.config/systemd/user
    python -m precompiled.systemd.install --print       write the unit to standard output and install nothing
    python -m precompiled.systemd.install --uninstall   stop and disable the daemon, remove the unit

The unit files are package data of this folder, with ``@PYTHON@`` in place of the interpreter. pip cannot install them:
it may not write to systemd's directories, and each unit must name one of several interpreters.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

import click

from precompiled.core import durable
from precompiled.core.errors import ConfigError, PrecompiledError

UNIT_NAME = "precompiled.service"
TEMPLATES = {"system": "precompiled.service", "user": "precompiled-user.service"}
PLACEHOLDER = "@PYTHON@"


def quote(path: str) -> str:
    """Quote ``path`` as one word of an ``ExecStart=`` line. Raises ConfigError if a unit file cannot contain ``path``.

    systemd expands ``%`` everywhere and reads backslashes inside quotes. So an unquoted ``/opt/100%/bin/python`` would
    name a different program.
    """
    if not path.startswith("/") or any(ord(char) < 32 or ord(char) == 127 for char in path):
        raise ConfigError(
            f"the interpreter {path!r} cannot be named in a unit file", "Use a path without such characters"
        )
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if escaped == path and not any(char in path for char in " '$;") else f'"{escaped}"'


def render(kind: str, python: str) -> str:
    """Return the text of the "system" or the "user" unit, for the interpreter ``python``."""
    template = resources.files("precompiled.systemd").joinpath(TEMPLATES[kind]).read_text(encoding="utf-8")
    head, *body = template.split("[Unit]", 1)
    # People read the comment at the start of the file, so it gets the path without quotes.
    return head.replace(PLACEHOLDER, python) + "[Unit]" + body[0].replace(PLACEHOLDER, quote(python))


def unit_directory(kind: str) -> Path:
    """Return the directory for units that were installed by an administrator or a user, not by a distribution."""
    if kind == "system":
        return Path("/etc/systemd/system")
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "systemd" / "user"


def _ancestry(path: str) -> Iterator[str]:
    """Yield ``path``, the targets of symbolic links on the way to it, and all directories above these paths."""
    pending = [path]
    seen: set[str] = set()
    while pending:
        current = os.path.abspath(pending.pop())
        while current not in seen:
            seen.add(current)
            yield current
            if os.path.islink(current):
                pending.append(os.path.join(os.path.dirname(current), os.readlink(current)))
            current = os.path.dirname(current)


def writable_by_others(paths: Iterable[str], owner: int = 0) -> list[str]:
    """Return the paths, or directories above them, that users other than ``owner`` and root may change."""
    found = []
    for name in sorted({ancestor for path in paths for ancestor in _ancestry(path)}):
        try:
            status = os.lstat(name)
        except OSError:
            continue  # an absent path is harmless, since its parent is checked, too
        others = 0 if stat.S_ISLNK(status.st_mode) else status.st_mode & 0o022
        if others & 0o020 and status.st_gid == 0:
            others &= ~0o020  # root's group may write
        if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
            others = 0  # a sticky directory such as /tmp: other users may add names, but not replace existing ones
        if others or status.st_uid not in (0, owner):
            found.append(name)
    return found


def code_of_this_interpreter() -> list[str]:
    """Return the interpreter, its library, and the directories of packages: the daemon executes code from these."""
    names = {sys.executable, os.path.dirname(os.path.dirname(__file__)), *sysconfig.get_paths().values()}
    return [name for name in names if os.path.exists(name)]


def check_interpreter(kind: str, python: str) -> None:
    """Raise ConfigError if the unit could not start, or if root would execute code that other users may change."""
    isolated = ["-I"] if kind == "system" else []
    tried = subprocess.run(
        [python, *isolated, "-c", "import precompiled.service"], capture_output=True, text=True, check=False, cwd="/"
    )
    if tried.returncode != 0:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"{python} {' '.join(isolated)} cannot import precompiled.service: {reason}",
            "Install precompiled into that environment itself, not with pip --user or through PYTHONPATH",
        )
    if kind == "system" and (loose := writable_by_others(code_of_this_interpreter())):
        shown = ", ".join(loose[:3]) + (f" and {len(loose) - 3} more" if len(loose) > 3 else "")
        raise ConfigError(
            f"the system daemon would execute, as root, code that other users can change: {shown}",
            "Install precompiled into an environment that root owns (python3 -m venv /opt/precompiled, as root). "
            "If all these users are administrators, you can pass --trust-writable instead",
            code="environment-writable",
        )


def _systemctl(kind: str, *arguments: str) -> None:
    """Run systemctl. Errors only print a message, because systemd reads the unit at its own next start."""
    command = ["systemctl", *(["--user"] if kind == "user" else []), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        click.echo("systemctl is not installed. systemd reads the unit when it starts.", err=True)
        return
    if done.returncode != 0:
        click.echo(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}", err=True)


def install(kind: str, directory: Path, python: str) -> Path:
    """Write the unit atomically, so readers see the whole old unit or the whole new one."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / UNIT_NAME
    with durable.replacing(target, 0o644, sync=False) as file:
        file.write(render(kind, python).encode())
    return target


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--user", is_flag=True, help="Install the user daemon, not the system daemon.")
@click.option("--prefix", type=click.Path(path_type=Path), help="Write below PREFIX (for packaging). Run no systemctl.")
@click.option("--print", "show", is_flag=True, help="Write the unit to standard output. Install nothing.")
@click.option("--uninstall", is_flag=True, help="Stop and disable the daemon, and remove its unit.")
@click.option("--trust-writable", is_flag=True, help="Install even if others can write to the environment.")
def main(user: bool, prefix: Path | None, show: bool, uninstall: bool, trust_writable: bool) -> None:
    """Install the systemd unit of precompiled for this Python interpreter."""
    kind = "user" if user else "system"
    try:
        if show:
            click.echo(render(kind, sys.executable), nl=False)
            return
        if not user and prefix is None and os.geteuid() != 0:
            raise ConfigError("only root can install the system daemon", "Run this as root, or pass --user")
        directory = unit_directory(kind)
        if prefix is not None:
            directory = prefix.absolute() / directory.relative_to("/")
        control = "systemctl --user" if user else "systemctl"
        if uninstall:
            if prefix is None:
                _systemctl(kind, "disable", "--now", UNIT_NAME)
            (directory / UNIT_NAME).unlink(missing_ok=True)
            if prefix is None:
                _systemctl(kind, "daemon-reload")
            click.echo(f"{directory / UNIT_NAME} is removed. Artifacts stay.")
            return
        try:
            check_interpreter(kind, sys.executable)
        except ConfigError as error:
            if not (trust_writable and error.code == "environment-writable"):
                raise
            click.echo(f"warning: {error.message}", err=True)
        target = install(kind, directory, sys.executable)
        if prefix is None:
            _systemctl(kind, "daemon-reload")
        click.echo(f"{target} is installed. Next, run: {control} enable --now precompiled")
    except (PrecompiledError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
