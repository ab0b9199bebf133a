"""Tests of log records that the daemon sends to the journal, read from a real socket. (tests/systemd has a real
journal.)
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from precompiled.service import journal


def decoded(data: bytes) -> dict[str, str]:
    """Decode a record in the journal's protocol, and return its fields."""
    found = {}
    while data:
        name, separator, rest = data.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
            data = rest
        else:
            assert separator
            key, length = name, int.from_bytes(rest[:8], "little")
            value, data = rest[8 : 8 + length], rest[8 + length :]
            assert data[:1] == b"\n"
            data = data[1:]
        found[key.decode()] = value.decode()
    return found


def test_a_record_has_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        handler = journal.JournalHandler(str(path))
        log = logging.Logger("precompiled.daemon")
        log.addHandler(handler)
        log.warning("job %s", "1\n2", extra={"journal": {"PRECOMPILED_GRAPH": "ab12", "PRECOMPILED_KEY": "x=y"}})
        log.info("plain")
        first, second = (decoded(receiver.recv(1 << 16)) for _ in range(2))
        handler.close()
    assert first["MESSAGE"] == "job 1\n2" and first["PRIORITY"] == "4" and first["LOGGER"] == "precompiled.daemon"
    assert first["PRECOMPILED_GRAPH"] == "ab12" and first["PRECOMPILED_KEY"] == "x=y"
    assert first["CODE_FILE"] == __file__ and first["SYSLOG_IDENTIFIER"] == "precompiled"
    assert second["MESSAGE"] == "plain" and second["PRIORITY"] == "6" and "PRECOMPILED_GRAPH" not in second


@pytest.mark.parametrize("message", ["short", "long" * 1_000_000], ids=["no journal", "too long"])
def test_a_record_that_cannot_be_sent_goes_to_stderr(
    message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        if message != "short":
            receiver.bind(str(path))
        handler = journal.JournalHandler(str(path))
        handler.handle(logging.makeLogRecord({"msg": message, "levelno": logging.INFO}))
        handler.close()
    assert message in capsys.readouterr().err


def test_stderr_is_the_journals_only_if_device_and_inode_match(tmp_path: Path) -> None:
    code = "import os, sys; from precompiled.service import journal; print(journal.is_stderr(os.environ['STREAM']))"
    with (tmp_path / "stderr").open("w") as stream:
        found = os.fstat(stream.fileno())
        for number, expected in ((found.st_ino, "True"), (found.st_ino + 1, "False")):
            env = {**os.environ, "STREAM": f"{found.st_dev}:{number}"}
            answer = subprocess.run(
                [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=stream, text=True, check=True
            )
            assert answer.stdout.strip() == expected
    assert not journal.is_stderr("")
