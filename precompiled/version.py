"""What the start of every Python process needs, importable without importing anything else: the version of this
distribution, and whether the environment switches it off."""

VERSION = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH = "PRECOMPILED"
OFF = ("0", "00", "false", "no", "off")
ON = ("1", "true", "yes", "on")  # as is every other value; `precompiled doctor` warns of those


def switched_off(variables: "Mapping[str, str]") -> bool:
    """Whether these environment variables switch everything off. sitecustomize.py, which must run in Pythons of any
    version, says the same in its own words."""
    return variables.get(SWITCH, "").strip().lower() in OFF
