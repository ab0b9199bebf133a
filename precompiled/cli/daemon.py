"""daemon start, stop, restart and serve, and the requests of other commands to the daemon."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from precompiled import parts
from precompiled.cli.app import command
from precompiled.cli.output import Output
from precompiled.core import paths
from precompiled.core.config import CLIENT_ONLY, NAMES, Settings
from precompiled.core.errors import DaemonError
from precompiled.core.words import format_list

if TYPE_CHECKING:
    from precompiled import wire

ANSWER_TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


def timeout_option(default: float) -> Any:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),  # a shorter wait would blame a healthy daemon
        default=default,
        show_default=True,
        metavar="SECONDS",
        help="Wait this long for an answer.",
    )


@command("start", overrides=True, examples=["precompiled daemon start --set workers=2"])
@timeout_option(START_TIMEOUT_S)
def start_command(out: Output, settings: Settings, timeout: float) -> int:
    """Start your daemon and wait until it answers.

    You rarely need this: the first graph that the store lacks starts a daemon. The exit status is 1 if a daemon
    already runs with other values for the settings in --set.
    """
    return _start(out, settings, timeout)


@command("stop", examples=["precompiled daemon stop"])
@timeout_option(STOP_TIMEOUT_S)
def stop_command(out: Output, settings: Settings, timeout: float) -> int:
    """Stop the daemon, its workers and the remote's helper.

    The store keeps all compiled graphs. The exit status is 0 if no daemon runs.
    """
    pid, helper = stop_daemon(settings, timeout), _stop_helper(settings, timeout)
    text = "No daemon runs." if pid is None else f"Stopped the daemon (pid {pid})."
    if helper is not None:
        text += f" Stopped the helper of the remote (pid {helper})."
    out.result({"stopped": pid is not None, "pid": pid, "helper_pid": helper}, text)
    return 0


@command("restart", overrides=True, examples=["precompiled daemon restart --set workers=2"])
@timeout_option(STOP_TIMEOUT_S)
def restart_command(out: Output, settings: Settings, timeout: float) -> int:
    """Stop the daemon and start a new one.

    Do this after you upgrade precompiled or change a setting of the daemon.
    """
    stop_daemon(settings, timeout)
    return _start(out, settings, timeout)


@command("serve", overrides=True, examples=["precompiled daemon serve --set log=debug"])
@click.option("--system", is_flag=True, help="Serve all users of this host. Only root can do this.")
def serve_command(out: Output, settings: Settings, system: bool) -> int:
    """Run the daemon in the foreground, for systemd or containers.

    The daemon logs to standard error and ends on SIGTERM or Ctrl-C.
    """
    # Run the daemon by exec instead of importing it, so that the command line imports only client code. Only flags are
    # passed on, because the daemon resolves the settings itself. A client that starts a daemon passes more flags
    # (client/start.arguments).
    arguments = [sys.executable, "-m", "precompiled.service", *(["--system"] if system else [])]
    for name in NAMES:
        if settings.origins[name] == "flag":
            arguments += ["--" + name.replace("_", "-"), settings.text(name)]
    sys.stdout.flush()
    os.execv(sys.executable, arguments)


# ---------------------------------------------------------------- inside

# DaemonError codes that mean that no daemon runs. All other codes mean that a running daemon has a problem.
NOT_RUNNING = ("no-daemon",)


def ask_daemon(settings: Settings, message: Any, timeout: float) -> Any:
    from precompiled.client import ask

    return ask.request(settings, message, timeout)


def fields(reply: object) -> dict[str, Any]:
    """A reply's fields, without the wire format's "type"."""
    import msgspec

    found: dict[str, object] = msgspec.to_builtins(reply)
    found.pop("type", None)
    return found


def socket_of(settings: Settings) -> str:
    return str(paths.socket_path(settings.runtime_dir))


def _start(out: Output, settings: Settings, timeout: float) -> int:
    from precompiled import wire
    from precompiled.client.start import start_daemon

    outcome = start_daemon(settings, timeout)
    if outcome.code == "no-place":
        raise outcome.error()
    if not outcome.runs:
        raise DaemonError(
            f"the daemon did not start ({outcome.kind}): {outcome.reason}",
            f"See {settings.log_path}, or run `precompiled doctor`"
            if settings.log_path.exists()
            else "Run `precompiled doctor`",
            code=f"start-{outcome.kind}",
        )
    verb, pid = "The daemon is ready", outcome.pid
    if outcome.kind == "already-running":
        reply = ask_daemon(settings, wire.Status(), ANSWER_TIMEOUT_S)
        verb, pid = "A daemon runs already", reply.pid
        _check_settings(settings, reply)
    document = {"outcome": outcome.kind, "pid": pid, "socket": socket_of(settings)}
    out.result(document, f"{verb} (pid {pid}, {document['socket']}).")
    return 0


def _check_settings(settings: Settings, reply: wire.StatusReply) -> None:
    """Raise DaemonError if the running daemon has values that differ from the given flags."""
    given = [name for name in NAMES if settings.origins[name] == "flag" and name not in CLIENT_ONLY]
    other = [name for name in given if reply.settings.get(name, settings.text(name)) != settings.text(name)]
    if other:
        has = format_list([f"{name} = {reply.settings[name]}" for name in other])
        sets = " ".join(f"--set {name}={shlex.quote(settings.text(name))}" for name in other)
        raise DaemonError(
            f"a daemon runs already (pid {reply.pid}) with {has}",
            f"Run `precompiled daemon restart {sets}`",
            code="other-settings",
        )


def stop_daemon(settings: Settings, timeout: float) -> int | None:
    """Stop the daemon and wait until its process has ended. Returns its pid, or None if no daemon ran."""
    from precompiled import wire

    try:
        pid: int = ask_daemon(settings, wire.Stop(), min(timeout, ANSWER_TIMEOUT_S)).pid
    except DaemonError as error:
        if error.code in NOT_RUNNING:
            return None
        skewed = _own_listener(settings) if error.code == "protocol-version" else None
        if skewed is None:
            raise
        pid = skewed
        os.kill(pid, signal.SIGTERM)  # a daemon of another version does not understand the Stop message
    if not _wait_for_end(pid, timeout):
        raise DaemonError(
            f"the daemon (pid {pid}) still runs {timeout:g} s after the request to stop",
            f"Give a longer --timeout, or run `kill -9 {pid}`",
            code="stop-timed-out",
        )
    return pid


def _stop_helper(settings: Settings, timeout: float) -> int | None:
    """Stop the store's helper and wait until it has ended. Returns its pid, or None if none ran."""
    remote = parts.REMOTE.get()
    pid = remote.stop_helper(settings) if remote is not None else None
    if pid is not None and not _wait_for_end(pid, timeout):
        raise DaemonError(
            f"the helper of the remote (pid {pid}) still runs {timeout:g} s after the request to stop",
            f"Give a longer --timeout, or run `kill -9 {pid}`",
            code="stop-timed-out",
        )
    return pid


def _own_listener(settings: Settings) -> int | None:
    """The pid of the process that listens on the daemon's socket, if it is this user's daemon; otherwise None."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    from precompiled.client.daemon_link import listener

    found = listener(settings)
    if found is None or found.uid != os.geteuid():
        return None
    try:  # with socket activation, systemd is the listener
        command = psutil.Process(found.pid).cmdline()
    except psutil.Error:
        return None
    return found.pid if any("precompiled" in word for word in command) else None


def _wait_for_end(pid: int, timeout: float) -> bool:
    """Whether the process ended in time. A zombie counts as ended: in a container, PID 1 may not reap it."""
    import select

    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # a kernel before 5.3
        try:
            psutil.Process(pid).wait(timeout)
        except psutil.NoSuchProcess:
            return True
        except psutil.TimeoutExpired:
            return False
        return True
    try:
        return bool(select.select([fd], [], [], timeout)[0])
    finally:
        os.close(fd)
