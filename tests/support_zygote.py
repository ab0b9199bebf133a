"""Support: starts programs as forks of a zygote, a process that has imported torch and done nothing else.

The tests start hundreds of programs, and the import of torch, Dynamo and Inductor takes three to five seconds of CPU. A
fork differs from a new interpreter only in its imported modules and its exit. The zygote does not import precompiled.

Some tests depend on an interpreter's start: on its options, its hash seed, its version, or variables that Python or
torch read at the start. For these tests, ``start`` runs a new interpreter. Some tests, such as those of the hook, start
a new interpreter themselves.

Each value of OMP_NUM_THREADS has its zygote, because torch reads the variable once.

``start`` returns an object with the parts of ``subprocess.Popen`` that tests use. Run as a program, this file is the
zygote. The zygote takes one request per connection, with the descriptors of the standard streams. The zygote replies
with the fork's pid, and later with the fork's exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Prefixes of variables that Python, torch or its libraries read at their start. A program with other values runs in a
# new interpreter.
AT_THE_START = ("CUDA", "GOMP", "KMP", "LC_", "LD_", "LANG", "MKL", "OMP", "PYTHON", "PYTORCH", "TORCH")
BUT = ("TORCHINDUCTOR_CACHE_DIR", "OMP_NUM_THREADS")
START_S = 120.0


def start(arguments: Sequence[str], env: Mapping[str, str], cwd: str | Path) -> subprocess.Popen[str] | Forked:
    """Start a program, by a fork if possible. The program's standard output and error are text pipes.

    ``arguments``: an interpreter, a script (or "-c" and text), and the arguments of the script.
    """
    is_plain = arguments[0] == sys.executable and (arguments[1] == "-c" or not arguments[1].startswith("-"))
    if is_plain and _at_the_start(env) == _at_the_start(os.environ):
        return Forked(_zygote(env.get("OMP_NUM_THREADS")), arguments, env, cwd)
    return execute(arguments, env, cwd)


def execute(arguments: Sequence[str], env: Mapping[str, str], cwd: str | Path) -> subprocess.Popen[str]:
    """Start a new interpreter, for programs whose files may be newer than the zygote."""
    return subprocess.Popen(
        list(arguments), env=dict(env), cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _at_the_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_THE_START) and name not in BUT}


class Forked:
    """A forked program, with the interface of ``subprocess.Popen``."""

    def __init__(self, zygote: Path, arguments: Sequence[str], env: Mapping[str, str], cwd: str | Path) -> None:
        self.returncode: int | None = None
        self.args = list(arguments)
        pipes = [os.pipe(), os.pipe()]
        request = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": str(cwd)}).encode()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(zygote))
        socket.send_fds(self._connection, [len(request).to_bytes(8, "big")], [writing for _, writing in pipes])
        self._connection.sendall(request)
        for _, writing in pipes:
            os.close(writing)
        self.stdout, self.stderr = (os.fdopen(reading, encoding="utf-8", errors="replace") for reading, _ in pipes)
        self.pid = int.from_bytes(_receive(self._connection, 8), "big")

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutError):
            return self._wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._wait(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as ready:
                ready.register(self._connection, selectors.EVENT_READ)
                if not ready.select(timeout):
                    raise TimeoutError
            status = _receive(self._connection, 8)
            # As in Popen, a negative number means that a signal ended the program.
            self.returncode = int.from_bytes(status, "big", signed=True) if status else -signal.SIGKILL
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _receive(connection: socket.socket, size: int) -> bytes:
    """Returns exactly ``size`` bytes, or empty bytes if the stream ends first."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


@functools.cache
def _zygote(threads: str | None) -> Path:
    """Returns the socket of the zygote for this number of threads.

    The first call starts the zygote. The zygote ends together with this process.
    """
    directory = tempfile.TemporaryDirectory(prefix="pc-zygote-")
    path = Path(directory.name) / "socket"
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if threads is not None:
        env["OMP_NUM_THREADS"] = threads
    process = subprocess.Popen(
        [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n", "the zygote did not start"

    def end() -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()  # the zygote ends when its standard input is closed
        process.wait(START_S)
        process.stdout.close()
        directory.cleanup()

    atexit.register(end)
    return path


# ---------------------------------------------------------------- the program of the zygote


def _serve(path: str) -> list[str] | None:
    """Fork once per request until standard input ends.

    Returns in each fork, with the script to run and its arguments. At the end also returns in the zygote, with None.
    """
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    ready = selectors.DefaultSelector()
    ready.register(listening, selectors.EVENT_READ)
    ready.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in ready.select():
            if key.fileobj is sys.stdin:
                return None
            if key.fileobj is not listening:
                _tell_end(ready, key)
                continue
            connection = listening.accept()[0]
            head, streams, _, _ = socket.recv_fds(connection, 8, 2)
            request = json.loads(_receive(connection, int.from_bytes(head, "big")))
            pid = os.fork()
            if pid == 0:
                ready.close()
                listening.close()
                connection.close()
                _become(request, streams)
                arguments = list(request["arguments"])
                # On torch 2.11 the import of Inductor may initialise CUDA. A fork then cannot use GPUs.
                if torch.cuda._is_in_bad_fork():
                    os.execv(arguments[0], arguments)
                return arguments
            for stream in streams:
                os.close(stream)
            connection.sendall(pid.to_bytes(8, "big"))
            ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _tell_end(ready: selectors.DefaultSelector, key: selectors.SelectorKey) -> None:
    pid, connection = key.data
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # the requesting process may be gone
        connection.sendall(status.to_bytes(8, "big", signed=True))
    connection.close()
    ready.unregister(key.fileobj)
    os.close(key.fd)


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Set the environment, standard streams and folder of this fork as the request says."""
    os.environ.clear()
    os.environ.update(request["env"])
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, *streams)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])


def _run(arguments: list[str]) -> None:
    """Run a script or "-c" text as Python does, and exit without finalising the interpreter.

    Finalisation would take 1.4 seconds of CPU per program: it writes to each object of torch, and the fork would have
    to copy these memory pages.
    """
    status = 0
    try:
        _execute(arguments)
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
        if not isinstance(exit.code, int | None):
            print(exit.code, file=sys.stderr)
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    threading._shutdown()  # type: ignore[attr-defined]  # first, as in Py_FinalizeEx
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _execute(arguments: list[str]) -> None:
    sys.orig_argv, sys.argv = list(arguments), list(arguments[1:])
    main = vars(sys.modules["__main__"])
    if sys.argv[0] == "-c":
        text, name = sys.argv.pop(1), "<string>"
        sys.path[0] = ""
        del main["__file__"]
    else:
        name = os.path.abspath(sys.argv[0])
        sys.path[0] = os.path.dirname(name)
        main["__file__"] = name
        text = Path(name).read_text()
    exec(compile(text, name, "exec"), main)


if __name__ == "__main__":
    import torch._inductor.compile_fx  # before any fork, so that all forks share the modules

    script = _serve(sys.argv[1])
    if script is not None:
        _run(script)
