"""Programs of others (`make programs`): what libraries' users write, run three times with precompiled switched on."""

from benchmarks.programs import graphs, images, language, loops, science  # noqa: F401 - they fill the table
from benchmarks.programs.registry import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
