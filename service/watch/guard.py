"""Runs a capture's command, and kills it if the watcher ends: ``python -I -S guard.py --fd N --nice M -- CMD...``.

The guard leads the session and the process group of the command. When the pipe N ends, the watcher has ended, and the
guard kills the group. When the command ends, the guard exits with the command's status (128 + N for the signal N). The
file imports nothing of this project, so that it starts fast and stays small.
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
            # A niceness acts only within its session (sched(7)), so the autogroup is set as well. The second file makes
            # the kernel kill a capture first when memory is short.
            with open(path, "w") as file:
                file.write(value)
        except OSError:
            pass  # no autogroups, or a container forbids it: only the niceness below applies
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
        os.dup2(null, standard)  # so that the output pipe ends with the command and not with the guard
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
