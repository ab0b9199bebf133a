"""Python imports this file at start-up, since its folder is first on PYTHONPATH. This file switches the hook on, then
runs the sitecustomize that it hides.

This file runs in every Python process that `precompiled run` starts, directly or not. Some of these processes run an
old Python or an environment without precompiled. In such a process, this file must silently do nothing, so it consists
of plain statements in old syntax.
"""

import os
import sys

if os.environ.get("PRECOMPILED", "").strip().lower() not in ("0", "00", "false", "no", "off"):  # version.OFF
    try:
        import precompiled.bootstrap

        precompiled.bootstrap.install()
    except Exception as error:  # noqa: BLE001 - no failure of precompiled's may stop an interpreter or show in it
        if os.environ.get("PRECOMPILED_LOG", "").lower() == "debug":
            sys.stderr.write("precompiled: the hook is off in " + sys.executable + ": " + repr(error) + "\n")

# Restore sys.path to its normal value. Child processes still find this folder, through PYTHONPATH.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _here]

# This folder is removed from sys.path and this module from sys.modules. So the import below finds the sitecustomize
# that Python would have found without `precompiled run`. Errors of that sitecustomize pass through, so `site` reports
# them. The import below cannot deadlock, because the lock that Python holds for the module sitecustomize is reentrant.
_self = sys.modules.pop(__name__, None)
try:
    __import__("sitecustomize")
except ImportError as _error:
    if getattr(_error, "name", None) != "sitecustomize":
        raise
    if _self is not None:  # no other sitecustomize exists: the import system expects this module in sys.modules
        sys.modules[__name__] = _self
