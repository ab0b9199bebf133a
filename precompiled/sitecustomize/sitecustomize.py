"""Python imports this at start-up, as it is first on PYTHONPATH: switches the hook on, then runs the sitecustomize
that it hides.

It reaches every Python below `precompiled run`, also interpreters of other versions and environments that lack
precompiled. There it does nothing and says nothing, which is why it is plain statements in old syntax.
"""

import os
import sys

if os.environ.get("PRECOMPILED", "").strip().lower() not in ("0", "00", "false", "no", "off"):  # version.OFF
    try:
        import precompiled.bootstrap

        precompiled.bootstrap.install()
    except Exception as error:  # noqa: BLE001 - no failure of ours may stop an interpreter, or even be seen in it
        if os.environ.get("PRECOMPILED_LOG", "").lower() == "debug":
            sys.stderr.write("precompiled: the hook is off in " + sys.executable + ": " + repr(error) + "\n")

# From here on sys.path is what it would be without us; children find us through PYTHONPATH again.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _here]

# Chain-load: with our folder and our module gone, the import below finds what Python would have found without us.
# Its errors pass through, so `site` reports them as its own; the module lock that our import holds is reentrant.
_self = sys.modules.pop(__name__, None)
try:
    __import__("sitecustomize")
except ImportError as _error:
    if getattr(_error, "name", None) != "sitecustomize":
        raise
    if _self is not None:  # there is no other: the import system expects to find us when we return
        sys.modules[__name__] = _self
