"""Reads objects of the user's program without running any of the program's code.

``isinstance`` reads an object's ``__class__``, ``getattr`` runs properties and ``__getattr__``, and ``vars`` runs a
property named ``__dict__``. The code of unbound proxies, mocks or lazy settings, for example, may raise, be slow or
change the program.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

_MISSING = object()


# The ``__dict__`` descriptor of Python's module type. A class derived from this type may define a ``__dict__`` of its
# own.
_OF_A_MODULE: Any = vars(types.ModuleType)["__dict__"]


def is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether an object's type is one of ``kinds``, or derives from one. ``kinds``: classes of Python or torch."""
    return issubclass(type(value), kinds)


def namespace_of(value: object) -> dict[str, Any]:
    """The attributes that an object itself holds, as from ``vars``. Empty if Python did not create its ``__dict__``."""
    if is_a(value, type):
        return dict(type.__dict__["__dict__"].__get__(value))
    if is_a(value, types.ModuleType):
        held = _OF_A_MODULE.__get__(value)
        return held if type(held) is dict else {}
    for base in type.__dict__["__mro__"].__get__(type(value)):
        descriptor = type.__dict__["__dict__"].__get__(base).get("__dict__")
        if descriptor is not None:
            held = descriptor.__get__(value) if type(descriptor) is types.GetSetDescriptorType else None
            return held if type(held) is dict else {}
    return {}


def slots_of(kind: type) -> list[str]:
    """The names of the slots that a class itself declares. A private slot has the form ``_Kind__slot``."""
    return [name for name, held in namespace_of(kind).items() if type(held) is types.MemberDescriptorType]


def attribute_of(value: object, name: str, default: object = None) -> Any:
    """An attribute as stored, without binding descriptors. Slots and C members are read."""
    found = inspect.getattr_static(value, name, _MISSING)
    if type(found) in (types.MemberDescriptorType, types.GetSetDescriptorType):
        try:
            return found.__get__(value)
        except (AttributeError, TypeError):  # an empty slot, or ``value`` is the class itself
            return default
    return default if found is _MISSING else found


def module_named(module: object) -> str:
    """The name of a module; "" if ``module`` is not a module. (sys.modules may contain any object.)"""
    name = namespace_of(module).get("__name__")
    return name if type(name) is str else ""
