"""Runs programs that use other libraries, each three times with precompiled (`make programs`)."""

from benchmarks.programs import graphs, images, language, loops, science, services, tools  # noqa: F401 - they register the programs
from benchmarks.programs.registry import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program"]
