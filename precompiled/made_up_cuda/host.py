"""Gives the processes of one Python environment a host with made-up GPUs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# Workers run the same Python, but do not inherit LD_PRELOAD. So a .pth file loads the device.
_PTH = (
    "import os; os.environ.get('CUDA_MADE_UP') and "
    "__import__('precompiled.made_up_cuda.activate', fromlist=['_']).activate()\n"
)


def variables(python: str, devices: str, state: Path) -> dict[str, str]:
    """Environment variables that give a process of ``python`` the made-up ``devices`` (kinds, such as "h100,a100").

    Writes a .pth file into the site-packages of ``python``, and builds the device if needed. The .pth file does nothing
    in processes without these variables. ``state`` is a folder that the processes with these variables share
    (docs/explanation/made-up-cuda.md).
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
