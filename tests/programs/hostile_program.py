"""A program with hostile globals: they raise, run code, or return odd values if anything inspects them.

Usage: hostile_program.py. One compiled function uses none of these globals, and another one uses some of them. Prints a
line of JSON: the results of both functions, and which code of the globals ran meanwhile.
"""

from __future__ import annotations

import json
import sys
import types
import weakref
from unittest import mock

import torch

import precompiled
from precompiled.client.process import PROCESS

RAN: list[str] = []


def hostile(name: str):  # type: ignore[no-untyped-def]
    def method(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        RAN.append(name)
        raise RuntimeError(f"{name} was run")

    return method


SPECIAL = (
    "__class__",
    "__dict__",
    "__getattr__",
    "__getattribute__",
    "__eq__",
    "__hash__",
    "__bool__",
    "__len__",
    "__iter__",
    "__repr__",
    "__str__",
    "__call__",
    "__contains__",
    "__getitem__",
    "__module__",
    "__doc__",
    "__qualname__",
    "__wrapped__",
    "__code__",
    "__func__",
    "__self__",
    "__annotations__",
)
NOT_METHODS = ("__class__", "__dict__", "__module__", "__qualname__", "__doc__")
AS_METHODS = {
    f"METHOD{name}": type("Hostile", (), {"__hash__": hostile("__hash__"), name: hostile(name)})()
    for name in SPECIAL
    if name not in NOT_METHODS
}
AS_PROPERTIES = {
    f"PROPERTY{name}": type("Hostile", (), {name: property(hostile(name))})()
    for name in SPECIAL
    if name not in ("__getattribute__", "__qualname__")
}


class NumberForADict:
    __dict__ = 3.0  # type: ignore[assignment]


class AnyAttribute:
    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return 3.0


class Meta(type):
    __instancecheck__ = hostile("__instancecheck__")
    __subclasscheck__ = hostile("__subclasscheck__")
    __getattr__ = hostile("Meta.__getattr__")
    __eq__ = hostile("Meta.__eq__")
    __hash__ = type.__hash__


class OfMeta(metaclass=Meta):
    pass


class HostileKeys(dict):  # type: ignore[type-arg]
    keys = hostile("keys")
    items = hostile("items")
    __iter__ = hostile("__iter__")
    __len__ = hostile("__len__")


class Slots:
    __slots__ = ("empty",)


class Dead:
    pass


def wraps_itself() -> None: ...


wraps_itself.__wrapped__ = wraps_itself  # type: ignore[attr-defined]
globals().update(AS_METHODS, **AS_PROPERTIES)
NUMBER, ANY, OF_META, KEYS, EMPTY = NumberForADict(), AnyAttribute(), OfMeta(), HostileKeys(a=1), Slots()
DEAD = weakref.proxy(Dead())
MOCK, MAGIC = mock.Mock(), mock.MagicMock()
sys.modules["hostile_no_module"] = NUMBER  # type: ignore[assignment]
sys.modules["hostile_property"] = AS_PROPERTIES["PROPERTY__dict__"]  # type: ignore[assignment]
LAZY = types.ModuleType("lazy")
LAZY.__getattr__ = hostile("lazy")  # type: ignore[method-assign, assignment]


@torch.compile
def uses_none(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x)


@torch.compile
def uses_some(x: torch.Tensor, held: object = NUMBER) -> torch.Tensor:
    y = torch.mm(x, x) if ANY.scale == 3.0 else x
    return y if held is NUMBER and EMPTY is not KEYS else x


def main() -> None:
    precompiled.enable()
    x = torch.ones(4, 4)
    found: dict[str, object] = {}
    for name, function in (("none", uses_none), ("some", uses_some)):
        RAN.clear()
        try:
            found[name] = function(x).sum().item()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        found[f"ran for {name}"] = sorted(set(RAN))
    if PROCESS.packages is not None:
        PROCESS.packages.flush()
    found["states"] = [report.state for report in precompiled.package_report()]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
