"""``python -m precompiled.service``: run the daemon, in the foreground or detached (as clients start it).

Exit status: 0 after a requested stop, or if another daemon runs already (with --ready-fd); 1 after a failure; 2 after a
usage error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from precompiled.core import config, paths
from precompiled.core.errors import ConfigError, PrecompiledError
from precompiled.core.regular_file import open_regular
from precompiled.version import VERSION

MAX_DESCRIPTORS = 65536  # as in the system unit
LOG_FILE_BYTES = 1 << 20  # the log is rotated at this size; two files are kept
JOURNAL_FORMAT = "%(levelname)s %(name)s: %(message)s"
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
WAIT_FOR_WINNER_S = 5.0  # how long to wait until the daemon that holds the lock answers or exits


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m precompiled.service", description=__doc__.splitlines()[0])
    parser.add_argument("--system", action="store_true", help="serve all users, as root")
    parser.add_argument("--detach", action="store_true", help="go to the background; log to a file")
    parser.add_argument(
        "--ready-fd", type=int, default=-1, metavar="N", help="write one line of JSON there: how the start went"
    )
    parser.add_argument("--version", action="version", version=VERSION)
    for name in config.NAMES:
        parser.add_argument("--" + name.replace("_", "-"), dest=name, metavar="VALUE", help=argparse.SUPPRESS)
    return parser


class _Report:
    """Writes the outcome of the start to ``fd``, once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def tell(self, outcome: str, reason: str = "") -> None:
        if self.fd < 0:
            return
        line = json.dumps({"outcome": outcome, "reason": reason, "pid": os.getpid()}) + "\n"
        fd, self.fd = self.fd, -1
        try:
            os.write(fd, line.encode())
        except OSError:
            pass  # the starter has exited
        os.close(fd)


def _say(text: str) -> None:
    """Write to stderr: the terminal, or a pipe that the starter reads until the daemon is ready."""
    sys.stderr.write(text + "\n")


def _detach() -> None:
    """Fork and leave the starter's session. The parent exits at once, so the starter reaps it and keeps no zombie."""
    if os.fork() != 0:
        os._exit(0)
    os.setsid()


def _log_to_file(settings: config.Settings) -> None:
    """Send the log, stdout and stderr to a file. Called once this daemon owns the runtime directory."""
    import logging
    from logging.handlers import RotatingFileHandler

    from precompiled.service.log_lines import LineFormatter

    path = settings.log_path

    class LogHandler(RotatingFileHandler):
        def _open(self) -> TextIOWrapper:
            return open(path, "a", encoding=self.encoding, errors=self.errors, opener=open_regular)

        def doRollover(self) -> None:
            super().doRollover()
            _point_output_at(path)  # otherwise the descriptors still point at the rotated file

    handler = LogHandler(path, maxBytes=LOG_FILE_BYTES, backupCount=1)
    handler.setFormatter(LineFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler], level=_level(settings), force=True)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    _point_output_at(path)


def _point_output_at(path: Path) -> None:
    """Redirect stdout and stderr to the log file, for output of the interpreter and the watcher."""
    log = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)


def _raise_descriptor_limit() -> None:
    """Raise the descriptor limit, because each client needs a descriptor.

    The usual limit of 1,024 is for programs that call select().
    """
    import resource
    from contextlib import suppress

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _level(settings: config.Settings) -> str:
    # The default "warning" suits clients, which share their user's terminal. A daemon's log can hold more.
    return "INFO" if settings.origins.get("log", "default") == "default" else settings.log.upper()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = vars(_parser().parse_args(argv))
    system, detach, ready_fd = arguments.pop("system"), arguments.pop("detach"), arguments.pop("ready_fd")
    on_demand = ready_fd >= 0
    if on_demand:
        try:
            # no worker may inherit this descriptor: the starter waits until every copy is closed
            os.set_inheritable(ready_fd, False)
        except OSError:
            _say(f"precompiled: --ready-fd {ready_fd} is not open")
            return 2
    if system:
        if arguments["runtime_dir"] is None and "PRECOMPILED_RUNTIME_DIR" not in os.environ:
            arguments["runtime_dir"] = paths.SYSTEM_RUNTIME_DIR
        if arguments["cache_dir"] is None and "PRECOMPILED_CACHE_DIR" not in os.environ:
            arguments["cache_dir"] = paths.SYSTEM_CACHE_DIR
    report = _Report(ready_fd)
    try:
        settings = config.load(arguments)
        paths.socket_path(settings.runtime_dir)
        if why := settings.why_no_store:
            raise ConfigError(why, paths.NO_PLACE_ACTION, code="no-place")
    except ConfigError as error:
        report.tell("failed", str(error))
        _say(f"precompiled: {error}")
        return 2
    if detach:
        _detach()
    os.chdir("/")  # a file system with a process's working directory cannot be unmounted
    os.umask(0o022 if system else 0o077)
    return _serve(settings, system, detach, on_demand, report)


def _serve(settings: config.Settings, system: bool, detach: bool, on_demand: bool, report: _Report) -> int:
    import logging
    import time

    from precompiled.service import daemon, journal, notify
    from precompiled.service.log_lines import LineFormatter

    # The journal adds the time to every line. Remove the variable: otherwise a worker would treat its stderr as the
    # journal.
    if journal.is_stderr(os.environ.pop("JOURNAL_STREAM", "")):
        handler: logging.Handler = journal.JournalHandler()
        handler.setFormatter(LineFormatter(JOURNAL_FORMAT))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LineFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler], level=_level(settings))

    _raise_descriptor_limit()

    def ready() -> None:
        if detach or settings.log_file is not None:
            _log_to_file(settings)
        report.tell("ready")

    notifier = notify.Notifier()
    give_up = time.monotonic() + WAIT_FOR_WINNER_S
    while True:
        try:
            return daemon.serve(settings, system=system, notifier=notifier, on_ready=ready)
        except daemon.AlreadyRunning as error:
            # The daemon with the lock may not have bound its socket yet, or may be about to exit. So retry until
            # clients can connect (then report this to the starter), or until this process gets the lock.
            from precompiled.client.daemon_link import daemon_reachable

            reachable = daemon_reachable(settings)
            if reachable or time.monotonic() >= give_up:
                report.tell("already-running" if reachable else "failed", str(error))
                if on_demand and reachable:
                    return 0
                _say(f"precompiled: {error}")
                return 1
            time.sleep(0.05)
        except (PrecompiledError, OSError) as error:
            report.tell("failed", str(error))
            _say(f"precompiled: {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
