"""Saves or loads a package file.

Usage: package_file_program.py SPEC. SPEC is a JSON object: ``do`` ("save" or "load"), ``file``, ``module``, ``folder``
(of the module), ``check_source``. Prints a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

import precompiled
from precompiled.core.errors import PrecompiledError

SPEC = json.loads(sys.argv[1])
sys.path.insert(0, SPEC["folder"])
precompiled.enable()


def main() -> None:
    module = importlib.import_module(SPEC["module"])
    torch.manual_seed(0)
    function, calls = module.build()
    compiled = torch.compile(function)
    found: dict[str, Any] = {"error": None}
    try:
        if SPEC["do"] == "load":
            found["entries"] = precompiled.load_package(
                compiled, SPEC["file"], check_source=SPEC.get("check_source", True)
            )
    except PrecompiledError as error:
        found["error"], found["message"] = error.code, str(error)
    torch._dynamo.utils.counters.clear()
    found["equal"] = all(torch.allclose(compiled(*call), function(*call), atol=1e-4) for call in calls)
    if SPEC["do"] == "save":
        try:
            precompiled.save_package(compiled, SPEC["file"])
        except PrecompiledError as error:
            found["error"], found["message"] = error.code, str(error)

    found["frames"] = dict(torch._dynamo.utils.counters["frames"])
    found["states"] = [report.state for report in precompiled.package_report()]
    found["reasons"] = [report.reasons for report in precompiled.package_report()]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
