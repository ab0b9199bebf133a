"""Lists the rows: small models in training and inference, random numbers, and programs of the tests' corpus."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from benchmarks.harness.hosts import ROOT
from benchmarks.interpreter.models import MODELS
from benchmarks.interpreter.random_numbers import RANDOM
from benchmarks.models.suite import TASKS

CORPUS = (
    "functions",
    "inputs",
    "numpy_calls",
    "optimizers",
    "settings",
    "sizes",
    "state",
    "transforms",
    "compiled_autograd",
)


def corpus() -> dict[str, Any]:
    """Return the functions that make the corpus's rows, by name."""
    folder = str(ROOT / "tests" / "programs")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for name in CORPUS:
        import_module(f"corpus.{name}")  # each module registers its rows
    found: dict[str, Any] = import_module("corpus.rows").ROWS
    return found


def rows() -> list[str]:
    """Return all names: model mlp training, ..., random NAME, ..., user kernels, corpus NAME, ..."""
    models = [f"model {name} {task}" for name in MODELS for task in TASKS]
    random = [f"random {name}" for name in RANDOM]
    return [*models, *random, "user kernels", *(f"corpus {name}" for name in corpus())]


def split(name: str) -> tuple[str, str]:
    group, _, rest = name.partition(" ")
    return group, rest
