"""Implements the libdevice functions that Inductor's kernels call, in numpy, because Triton's interpreter lacks them.

The names are those of Triton's ``libdevice``. Most functions compute in float64 and round once. Functions in
IN_OWN_PRECISION compute in their arguments' precision. CUDA's functions may differ by some units in the last place.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # a numpy array
Function = Callable[..., Array]


def _each(function: Callable[[float], float]) -> Function:
    """Apply a function of ``math`` to each element."""
    return np.vectorize(function, otypes=[np.float64])


def _erfinv(x: float) -> float:
    if not abs(x) < 1.0:
        return math.copysign(math.inf, x) if abs(x) == 1.0 else math.nan
    found = statistics.NormalDist().inv_cdf((1.0 + x) / 2.0) / math.sqrt(2.0) if abs(x) > 1e-3 else x
    for _ in range(3):  # Newton's method restores digits that (1 + x) / 2 lost
        found -= (math.erf(found) - x) * math.sqrt(math.pi) / 2.0 * math.exp(found * found)
    return found


def _erfcx(x: float) -> float:
    if x < 25.0:
        try:
            return math.exp(x * x) * math.erfc(x)
        except OverflowError:
            return math.inf
    square = 2.0 * x * x  # the asymptotic series; its next term is below 1e-9 of the result
    return (1.0 - 1.0 / square + 3.0 / square**2) / (x * math.sqrt(math.pi))


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0.0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _integral(integrand: Callable[[Array, Array], Array]) -> Function:
    """Return the mean of a function of period pi. The midpoint rule converges exponentially for periodic functions."""
    points = (np.arange(400) + 0.5) * np.pi / 400

    def function(x: Array) -> Array:
        return integrand(np.asarray(x, np.float64)[..., None], points).mean(-1)

    return function


def _ilogb(x: Array) -> Array:
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    exponent = np.frexp(x)[1] - 1
    return np.where(np.isnan(x) | (x == 0), least, np.where(np.isinf(x), most, exponent))


def _nextafter(x: Array, y: Array) -> Array:
    return np.nextafter(x, y)


IN_OWN_PRECISION: dict[str, Function] = {
    "fmod": np.fmod,
    "mul_rn": np.multiply,
    "nextafter": _nextafter,
    "copysign": np.copysign,
}
IN_DOUBLE: dict[str, Function] = {
    **{name: getattr(np, f"arc{name[1:]}") for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2")},
    **{
        name: getattr(np, name)
        for name in (
            "ceil",
            "cos",
            "cosh",
            "exp",
            "exp2",
            "expm1",
            "floor",
            "hypot",
            "ldexp",
            "log",
            "log10",
            "log1p",
            "log2",
            "signbit",
            "sin",
            "sinh",
            "sqrt",
            "tan",
            "tanh",
            "trunc",
            "isinf",
            "isnan",
        )
    },
    "pow": np.power,
    "fast_tanhf": np.tanh,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "fma": lambda x, y, z: x * y + z,
    "nearbyint": np.rint,
    "llrint": np.rint,
    "ilogb": _ilogb,
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "erfcx": _each(_erfcx),
    "erfinv": _each(_erfinv),
    "lgamma": _each(_lgamma),
    "j0": _integral(lambda x, t: np.cos(x * np.sin(t))),
    "j1": _integral(lambda x, t: x * np.cos(x * np.cos(t)) * np.sin(t) ** 2),
    "cyl_bessel_i0": _integral(lambda x, t: np.exp(x * np.cos(t))),
    "cyl_bessel_i1": _integral(lambda x, t: x * np.exp(x * np.cos(t)) * np.sin(t) ** 2),
}


class NoReference(Exception):
    """This file lacks the libdevice function that the message names."""


def evaluate(name: str, arguments: list[Array], dtype: Any) -> Array:
    """Return ``libdevice.name(*arguments)`` with ``dtype``. Raises NoReference if ``name`` is not implemented."""
    with np.errstate(all="ignore"):
        if (own := IN_OWN_PRECISION.get(name)) is not None:
            return own(*arguments).astype(dtype)
        if (function := IN_DOUBLE.get(name)) is None:
            raise NoReference(f"libdevice.{name} has no reference in benchmarks/interpreter/libdevice.py")
        doubled = [value.astype(np.float64) if value.dtype.kind == "f" else value for value in arguments]
        return np.asarray(function(*doubled)).astype(dtype)
