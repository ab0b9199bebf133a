"""Gives the processes of one Python environment a host with made-up GPUs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# Workers also run the environment's Python. So this is a .pth file and not a variable of the loader.
_PTH = (
    "import os; os.environ.get('CUDA_MADE_UP') and "
    "__import__('precompiled.made_up_cuda.activate', fromlist=['_']).activate()\n"
)


def variables(python: str, devices: str, state: Path) -> dict[str, str]:
    """The environment variables with which a process of ``python`` has ``devices`` (kinds, "h100,a100").

    Writes a .pth file into that environment's site-packages, and builds the device if needed. The .pth file does
    nothing in other processes. ``state`` is a folder that these processes share (docs/explanation/made-up-cuda.md).
    """
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    # The file's name sorts last, because other .pth files may add the folder that contains torch.
    Path(site, "zzz_made_up_cuda.pth").write_text(_PTH)
    command = [python, "-m", "precompiled.made_up_cuda.build"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return {
        "CUDA_MADE_UP": devices,
        "CUDA_MADE_UP_STATE": str(state),
        "PATH": os.pathsep.join([built, os.path.dirname(python), os.environ["PATH"]]),
    }
