"""The version of this distribution, and whether the environment switches it off.

Every Python process with the hook imports this file at its start, so it imports nothing.
"""

VERSION = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH = "PRECOMPILED"
OFF = ("0", "00", "false", "no", "off")
ON = ("1", "true", "yes", "on")  # every other value also means on, but `precompiled doctor` and `run` warn about it


def switched_off(variables: "Mapping[str, str]") -> bool:
    """Whether these environment variables switch everything off. sitecustomize.py repeats this test for Pythons of any
    version.
    """
    return variables.get(SWITCH, "").strip().lower() in OFF
