"""Decides whether the results of compiled code are as accurate as the results of eager code.

Eager and compiled code round differently, so their results differ. A difference within torch.testing's tolerances for
the dtype counts as rounding. If the difference is larger, a *reference* decides: the result of eager code in a wider
type. Compiled code is wrong only if its error against the reference is clearly larger than the error of eager code.
This is the rule of ``same`` in torch/_dynamo/utils.py (the check of torch's own benchmarks), with its factors 2 and 3::

    rmse(reference, compiled) <= factor * rmse(reference, eager) + slack

torch's slack is an absolute 1e-5. Here, the slack grows with the values: it is torch.testing's tolerance for a value of
the mean magnitude. So if the mean difference of eager and compiled code is below the slack, the rule holds for every
reference, and no reference is computed.

Integers and booleans are not rounded, but they may depend on rounded values, as the result of ``argmax`` does. The
error of such values is the share of elements that differ from the reference, and the slack is 1 %.

Private names: torch.testing._comparison.default_tolerances. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._comparison import default_tolerances

DISCRETE_SLACK = 0.01
_SMALL = 1000  # elements; below this number, torch's ``same`` uses the larger factor
_CHUNK = 1 << 18  # elements
_HALVES = (torch.float16, torch.bfloat16)


class Undecided(Exception):
    """A result differs by more than rounding usually does, and no reference decides whether it is right."""


@dataclass(frozen=True)
class Difference:
    """Describes a wrong result of compiled code: which result it is, and how it differs from the result of eager
    code.
    """

    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.what} {self.how}"


def difference(what: str, eager: Any, compiled: Any, reference: Callable[[], Any]) -> Difference | None:
    """Compare one result. ``what`` names it. Returns None if the compiled result is right.

    ``reference`` returns the result of eager code in a wider type. ``reference`` is only called if the results differ
    by more than rounding, and may raise Undecided.
    """
    if not isinstance(eager, torch.Tensor) or not isinstance(compiled, torch.Tensor):
        return _of_other_values(what, eager, compiled)
    for name in ("shape", "dtype", "device"):
        found, wanted = getattr(compiled, name), getattr(eager, name)
        if found != wanted:
            return Difference(what, f"has {name} {_text(found)} in compiled code, and {_text(wanted)} in eager code")
    if eager.numel() == 0:
        return None
    with torch.no_grad():
        return _of_tensors(what, eager.detach(), compiled.detach(), reference)


def _of_other_values(what: str, eager: Any, compiled: Any) -> Difference | None:
    if isinstance(eager, float) and isinstance(compiled, float):
        return difference(what, torch.tensor(eager), torch.tensor(compiled), lambda: _undecided(what))
    if type(eager) is type(compiled) and (eager is compiled or eager == compiled):
        return None
    return Difference(what, f"is {_text(compiled)} in compiled code, and {_text(eager)} in eager code")


def _undecided(what: str) -> Any:
    raise Undecided(f"{what} differs, and has no reference")


def _text(value: object) -> str:
    if isinstance(value, torch.Size):
        return str(tuple(value))
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return str(value).removeprefix("torch.")[:80]


def _of_tensors(
    what: str, eager: torch.Tensor, compiled: torch.Tensor, reference: Callable[[], Any]
) -> Difference | None:
    if not (eager.is_floating_point() or eager.is_complex()):
        return _of_discrete(what, eager, compiled, reference)
    dtype = eager.dtype
    rtol, atol = default_tolerances(dtype)
    both = _Errors.measure(eager, compiled, dtype, rtol, atol)
    if both.are_close or (not both.unlike and both.rmse <= atol + rtol * both.magnitude):
        return None
    exact = _reference(what, reference, eager)
    of_compiled, of_eager = (_Errors.measure(exact, one, dtype, rtol, atol) for one in (compiled, eager))
    if of_compiled.unlike > of_eager.unlike:
        return Difference(
            what, f"is infinite or NaN at {of_compiled.unlike} elements where the reference is not, or vice versa"
        )
    if of_compiled.unlike:
        raise Undecided(f"{what} differs, and its reference is infinite or NaN where eager code is not")
    factor = 3.0 if dtype in _HALVES or eager.numel() < _SMALL else 2.0
    if of_compiled.rmse <= factor * of_eager.rmse + atol + rtol * of_compiled.magnitude:
        return None
    return Difference(
        what,
        f"differs from eager code by up to {both.largest:.3g}. Its mean error is {of_compiled.rmse:.3g}, and "
        f"{of_eager.rmse:.3g} in eager code",
    )


def _reference(what: str, reference: Callable[[], Any], like: torch.Tensor) -> torch.Tensor:
    exact = reference()
    if not isinstance(exact, torch.Tensor) or exact.shape != like.shape:
        raise Undecided(f"{what} differs, and its reference has another form")
    return exact.detach()


@dataclass
class _Errors:
    """How one tensor differs from another. Means are over the elements that are finite in both."""

    are_close: bool = True  # within the tolerances, element by element
    unlike: int = 0  # elements that are infinite or NaN in only one of them
    largest: float = 0.0
    rmse: float = 0.0
    magnitude: float = 0.0  # the root mean square of the first tensor

    @classmethod
    def measure(cls, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, rtol: float, atol: float) -> _Errors:
        """``dtype``: a value counts as infinite if it is infinite in this dtype."""
        found, count = cls(), 0
        for wanted, got in zip(_pieces(left), _pieces(right), strict=True):
            # Compare chunk by chunk, so that the temporary tensors stay in the CPU's cache. float64 is exact for all
            # dtypes.
            one, other = wanted.double(), got.double()
            known = wanted.to(dtype.to_real()).double().isfinite()
            finite = known & other.isfinite()
            if not bool(finite.all()):
                found.unlike += int((known != other.isfinite()).sum())
                found.are_close &= bool((finite | (one == other) | (one.isnan() & other.isnan())).all())
                one, other = one[finite], other[finite]
            differences = (other - one).abs_()
            found.are_close &= bool((differences <= atol + rtol * one.abs()).all())
            found.largest = max(found.largest, float(differences.amax()) if differences.numel() else 0.0)
            found.rmse += float(torch.dot(differences, differences))
            found.magnitude += float(torch.dot(one, one))
            count += one.numel()
        found.rmse, found.magnitude = ((total / max(1, count)) ** 0.5 for total in (found.rmse, found.magnitude))
        return found


def _pieces(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The elements in order, as real numbers."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.reshape(-1).split(_CHUNK)


def _of_discrete(
    what: str, eager: torch.Tensor, compiled: torch.Tensor, reference: Callable[[], Any]
) -> Difference | None:
    differing = int((eager != compiled).sum())
    share = differing / eager.numel()
    if share <= DISCRETE_SLACK:
        return None
    exact = reference()
    if not isinstance(exact, torch.Tensor) or exact.shape != eager.shape:
        raise Undecided(f"{what} differs, and its reference has another form")
    of_compiled, of_eager = (float((exact != one).double().mean()) for one in (compiled, eager))
    if of_compiled <= 3.0 * of_eager + DISCRETE_SLACK:
        return None
    return Difference(what, f"differs from eager code in {differing} of {eager.numel()} elements")
