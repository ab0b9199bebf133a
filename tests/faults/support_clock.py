"""Support: processes whose wall clock a test shifts while they run."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
YEAR_S = 365 * 86400.0


class ShiftedClock:
    """``command`` runs a program under the shifted clock. ``shift`` changes the clock of all these processes at
    once.
    """

    def __init__(self, folder: Path) -> None:
        library = folder / "shifted_clock.so"
        self._file = folder / "shift"
        source = HERE / "shifted_clock.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, source, "-ldl"], check=True)
        self.command = ["env", f"LD_PRELOAD={library}", f"SHIFTED_CLOCK={self._file}"]
        self.shift(0.0)

    def shift(self, seconds: float) -> None:
        if not self._file.exists():
            self._file.write_bytes(bytes(8))
        with self._file.open("r+b") as file:  # not a new file, because the processes map this one
            file.write(struct.pack("d", seconds))
