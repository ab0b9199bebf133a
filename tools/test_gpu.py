"""`make test-gpu`: runs the tests that need CUDA, on this host's GPU or otherwise on a made-up GPU.

Without a GPU, the tests run with the oldest and the newest supported torch, in separate environments with CUDA builds
(`tests/versions/environments.py`; 5 GB each). Tests that compare kernels' values are then skipped, by name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "versions")]

import environments  # noqa: E402

from precompiled.made_up_cuda import host  # noqa: E402

VERSIONS = ("2.11.0", "2.15.0")
DEVICES = "h100,h100,a100"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="append", metavar="VERSION", help=f"of these only (of {', '.join(VERSIONS)})")
    parser.add_argument("--devices", default=DEVICES, metavar="KINDS", help=f"the made-up host's GPUs ({DEVICES})")
    parser.add_argument("--made-up", action="store_true", help="also where there is a GPU")
    arguments, passed_on = parser.parse_known_args()
    import torch

    if torch.cuda.is_available() and not arguments.made_up:
        return _pytest(sys.executable, dict(os.environ), passed_on)
    print(
        "NOT TESTED ON A GPU: there is none here. The device is made up: no kernel runs, no value of one is compared."
    )
    failed = 0
    for version in arguments.torch or VERSIONS:
        try:
            python = environments.python_of(version)
        except environments.Unavailable as error:
            print(f"NOT TESTED WITH TORCH {version}: {error}")
            failed = failed or (os.environ.get("PRECOMPILED_VERSION_TESTS") == "require")
            continue
        print(f"torch {version}, made-up CUDA devices: {arguments.devices}", flush=True)
        failed = _on_made_up(python, arguments.devices, passed_on) or failed
    return int(failed)


def _on_made_up(python: str, devices: str, passed_on: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="made-up-cuda-") as state:
        environment = {**os.environ, **host.variables(python, devices, Path(state))}
        # Without a device, the run would skip all tests and succeed.
        seen = [python, "-c", "import torch; print(torch.cuda.device_count())"]
        count = int(subprocess.run(seen, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
        if count != len(devices.split(",")):
            raise SystemExit(f"torch sees {count} devices, and not {devices}")
        return _pytest(python, environment, passed_on)


def _pytest(python: str, environment: dict[str, str], passed_on: list[str]) -> int:
    return subprocess.run(
        [python, "-m", "pytest", "-m", "gpu", *passed_on], cwd=ROOT, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
