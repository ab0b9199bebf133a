"""Starts the helper (precompiled/remote/helper.py) if no helper with these settings runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from precompiled.client.start import variables
from precompiled.core.regular_file import open_regular
from precompiled.remote import helper_link

if TYPE_CHECKING:
    from precompiled.core.config import Settings

LOG = "helper.log"


def arguments(settings: Settings) -> list[str]:
    return [
        "--store",
        str(settings.cache_dir),
        "--remote",
        settings.remote,
        "--timeout-s",
        str(settings.remote_timeout_s),
        *(["--farm", settings.farm] if settings.farm else []),
        *(item for path in settings.base for item in ("--base", str(path))),
        *(["--unsigned"] if settings.remote_unsigned else []),
        *([] if settings.remote_put else ["--no-put"]),
    ]


def ensure(settings: Settings) -> None:
    """Start a helper with these settings unless one runs. Does not wait until the helper is ready.

    Raises OSError if the start fails.
    """
    wanted = arguments(settings)
    found = helper_link.greeting(settings.cache_dir)
    if found is not None:
        if found.get("arguments") == wanted:
            return
        # The running helper has other settings.
        helper_link.ask(settings.cache_dir, {"do": "stop"}, wait_s=helper_link.GREETING_S)
    folder = helper_link.folder(settings.cache_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # While this file exists, workers wait for the helper that is starting.
    starting, whose = folder / helper_link.STARTING, os.urandom(8).hex()
    with open(starting, "w", opener=open_regular) as file:
        file.write(whose)
    with open(_log(folder), "ab", opener=open_regular) as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "precompiled.remote.helper",
                "--detach",
                f"--max-bytes={settings.cache_max_bytes}",
                f"--max-inodes={settings.cache_max_inodes}",
                *wanted,
            ],
            env=variables(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def reap() -> None:
        process.wait()
        # After a failed start, workers must not wait for the helper. If a later start has written the file, keep it.
        with suppress(OSError):
            if starting.read_text() == whose:
                starting.unlink()

    threading.Thread(target=reap, name="precompiled-start", daemon=True).start()


def _log(folder: Path) -> Path:
    """The path of the helper's log. A long log is deleted first."""
    path = folder / LOG
    if path.exists() and path.stat().st_size > 1 << 20:
        path.unlink()
    return path
