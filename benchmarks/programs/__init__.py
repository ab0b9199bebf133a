"""Programs of others (`make programs`): what libraries' users write, run three times with precompiled switched on."""

from benchmarks.programs import graphs, images, language, loops, science, services, tools  # noqa: F401 - they fill it
from benchmarks.programs.registry import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
