"""Encodes opaque objects among a graph's inputs by their class, because only the class matters to a compile.

A program may pass its own objects to its operators: vLLM passes the name of a layer (torch._library.opaque_object). If
the class is registered as hoisted, Dynamo turns the object into an input without guards, so the compiled code must be
valid for every object of the class. The key contains the class, like the key of torch's own cache. The worker gets an
object without a value. A compile that reads the value fails, because torch's fake object refuses access. The client
then compiles the graph in process.

Private names: torch._library.opaque_object.{is_opaque_type, should_hoist, has_members, _OPAQUE_TYPES,
get_opaque_obj_info}, torch._library.fake_class_registry.{FakeScriptObject, maybe_to_fake_obj},
torch._subclasses.fake_tensor.FakeTensorMode. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import types
from typing import Any

from torch._library import fake_class_registry, opaque_object
from torch._subclasses.fake_tensor import FakeTensorMode

from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import user_modules
from precompiled.torch_internals.user_code.user_modules import Name


def is_opaque(value: object) -> bool:
    return isinstance(value, fake_class_registry.FakeScriptObject)


def encode(value: Any, position: int, modules: dict[str, str]) -> Name:
    """The class of an opaque object. Adds the class's module and its digest to ``modules``. Workers import these
    modules.

    Raises Bypass if a compile may depend on more than the class.
    """
    kind = type(value.real_obj)
    if (
        not opaque_object.is_opaque_type(kind)
        or not opaque_object.should_hoist(kind)
        or opaque_object.has_members(kind)
    ):
        raise Bypass(
            f"input {position} is a {kind.__name__}; a compile may read more of it than its class",
            code="unsupported-input",
        )
    return user_modules.name_with_module(kind, modules, code="unsupported-input")


def make(name: Name, mode: FakeTensorMode) -> object:
    """An object of this class for a compile. The object has no value and equals only itself."""
    kind = user_modules.find(name)
    ours = {"__eq__": object.__eq__, "__ne__": object.__ne__, "__hash__": object.__hash__}
    blank = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(ours))
    # Torch 2.11 does not recognize a derived class as opaque.
    opaque_object._OPAQUE_TYPES[blank] = opaque_object.get_opaque_obj_info(kind)
    return fake_class_registry.maybe_to_fake_obj(mode, object.__new__(blank))
