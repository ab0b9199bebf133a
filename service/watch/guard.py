"""Starts a capture's command and ends it with the watcher: ``python -I -S guard.py --fd N --nice M -- CMD...``.

The guard leads the session and the group that the command runs in. When the pipe N ends (the watcher is gone, however
it died), it kills the group; when the command ends, it leaves with the same status (128 + N for the signal N). It is a
file by itself and imports nothing of ours: it is there before the command, and stays small (docs/decisions/0006).
"""

import os
import select
import signal
import sys


def main(argv: list[str]) -> None:
    at = argv.index("--")
    options = dict(zip(argv[:at:2], argv[1:at:2], strict=True))
    fd, command = int(options["--fd"]), argv[at + 1 :]
    for path, value in (("/proc/self/autogroup", options["--nice"]), ("/proc/self/oom_score_adj", "800")):
        try:
            # A niceness alone counts only within a session (sched(7)). When memory is short, a capture goes first.
            with open(path, "w") as file:
                file.write(value)
        except OSError:
            pass  # no autogroups, or a container that may not: the niceness is left
    os.nice(int(options["--nice"]))
    child = os.fork()
    if child == 0:
        os.close(fd)
        for name in ("SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write(f"{command[0]} cannot be run: {error.strerror}\n")
            sys.stderr.flush()
            os._exit(127)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)  # the output ends when the command ends, not with us
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    poll.register(reading, select.POLLIN)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)
        for ready, _ in poll.poll():
            if ready == fd:
                os.killpg(0, signal.SIGKILL)
            else:
                os.read(reading, 512)


if __name__ == "__main__":
    main(sys.argv[1:])
