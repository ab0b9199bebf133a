"""A host whose GPUs are made up, for the processes of one interpreter's environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# Workers are started by the environment's Python as well, and must find the device, so it is no variable for a loader.
_PTH = (
    "import os; os.environ.get('CUDA_MADE_UP') and "
    "__import__('precompiled.made_up_cuda.activate', fromlist=['_']).activate()\n"
)


def variables(python: str, devices: str, state: Path) -> dict[str, str]:
    """What a process of ``python`` needs besides its other variables to have ``devices`` (kinds, "h100,a100").

    Writes a line into that environment's site-packages, which does nothing in other processes, and builds the device
    where it is not built. ``state``: a folder for what these processes share (docs/explanation/made-up-cuda.md).
    """
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    # The last of its kind: others may say where torch is.
    Path(site, "zzz_made_up_cuda.pth").write_text(_PTH)
    command = [python, "-m", "precompiled.made_up_cuda.build"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return {
        "CUDA_MADE_UP": devices,
        "CUDA_MADE_UP_STATE": str(state),
        "PATH": os.pathsep.join([built, os.path.dirname(python), os.environ["PATH"]]),
    }
