"""Describes Dynamo's guards of a frame when Dynamo makes them, and compares the descriptions in a later process.

Torch's own serialization pickles copies of the guarded values, and cannot save guards on identity. This file saves no
object of the user's program. A stored guard is its *source* (``L['self'].training``), its kind, and a description of
the value at the source (describe/descriptions.py). In the later process the frame is live, so this file describes the
value at each source again. guard_building.py builds the guards only if all descriptions agree.

A value without a description, or a guard of an unknown kind, raises NotPortable.

Private names: torch._dynamo.guards.{GuardBuilder, convert_int_to_concrete_values, _get_closure_vars},
torch._dynamo.source.{LocalSource, is_from_unspecialized_nn_module_source}, torch._guards.{Guard, Source},
torch.utils._pytree.tree_map, torch._subclasses.fake_tensor.FakeTensor. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import operator
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo.guards as dynamo_guards
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import LocalSource, is_from_unspecialized_nn_module_source
from torch._guards import Guard, Source
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from precompiled.core.files import innermost_users, is_torchs
from precompiled.packages.describe import difference
from precompiled.packages.describe.codes import is_hashed_alike
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import Mismatch, NotPortable
from precompiled.packages.dynamo import dynamo_state, optimizers, ranks, value_facts
from precompiled.store.package_format import About, GuardText

# Kinds of guards without a fact: the kind, its parameters and the state around the frame say all that must hold.
NO_FACT = frozenset(
    """
    AUTOGRAD_SAVED_TENSORS_HOOKS DEFAULT_DEVICE DETERMINISTIC_ALGORITHMS DICT_CONTAINS DICT_NOT_CONTAINS DUAL_LEVEL
    DUPLICATE_INPUT FSDP_TRAINING_STATE FUNCTORCH_STACK_MATCH GLOBAL_STATE GRAD_MODE NOT_PRESENT_IN_GENERIC_DICT
    SET_CONTAINS SET_NOT_CONTAINS SHAPE_ENV TORCH_FUNCTION_STATE WEAKREF_ALIVE
    """.split()
)
_VALUES = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH", "CONSTANT_SUBCLASS_MATCH"})
_THINGS = frozenset({"ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "MODULE_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH"})
_LENGTHS = frozenset(difference.LENGTHS)
_KEYS = frozenset({"DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"})
# A source with one of these suffixes is a dictionary whose keys are not compared. The keys of copyreg's table differ
# between processes, and the keys of hooks are numbers that each process assigns.
NO_KEYS = (".dispatch_table", "_hooks", "_hooks_with_kwargs", "_hooks_always_called")
# Dynamo puts only NOT_NONE_MATCH on the gradient of an optimizer's parameter, and assumes that the gradient's sizes,
# strides and other properties stay the same.
_TENSORS = frozenset({"TENSOR_MATCH", "NOT_NONE_MATCH"})
_PARAMETERS = {"attr", "key", "source_b", "recompile_hint", "invert"}
_MADE_UP = re.compile(
    r"__builtins_dict__\w*|__precompiled_\w+|___module_\w+|___unnamed_scope\w+"
    r"|__(?:optimizer|dict_key)(?:_\d+)+_c\d+(?:/\d+)?|_\d{6,}_c\d+"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
WHEN = "when it was traced"
_ITEMS = re.compile(r", |[{}]")
# Matches ids of objects and version numbers of dictionaries, which differ between processes.
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b\d{7,}\b|(?<=\) == )\d+$")


GuardFact = tuple[Source, str, dict[str, Any], Any]  # source, kind, parameters, fact


@dataclasses.dataclass
class Guards:
    """The guards of one entry, as they are pickled."""

    guards: list[GuardFact]
    key_order: list[tuple[Source, Any]]  # source of an iterated container, its keys in order
    sizes: dict[Source, dict[str, Any]]
    aotautograd: list[object]
    shapes: Any  # ShapeCodeParts
    global_state: str
    builtins_name: str | None
    extra: dict[str, object]  # fields that only some versions have
    codes: str  # digest of the guards' own expressions
    static: list[object]  # sources of the tensors (parameters) that a trace marks as static


def describe(
    builder: GuardBuilder, guards: list[Guard], output: Any, shapes: object, described: Descriptions
) -> Guards:
    """Describe Dynamo's guards and the current values at their sources. No side effects. Raises NotPortable."""
    if output.export or output.functorch_layers or output.torch_function_mode_stack:
        raise dynamo_state.in_a_mode()
    return Guards(
        guards=facts(guards, builder, described),
        key_order=[
            (source, order_of(value_at(source, builder), source, described))
            # Equal traces must give equal entries, but the order of this set differs between processes.
            for source in sorted(output.guard_on_key_order, key=lambda source: source.name)
        ],
        sizes={
            source: {name: _concrete(value) for name, value in known.items()}
            for source, known in output.input_source_to_sizes_strides.items()
        },
        aotautograd=list(output.aotautograd_guards),
        shapes=shapes,
        global_state=str(output.global_state_guard.__getstate__()),
        builtins_name=output.name_of_builtins_dict_key_in_fglobals,
        extra={name: getattr(output, name) for name in ("compile_on_one_rank",) if hasattr(output, name)},
        codes=codes_digest(guards),
        static=[
            guard.originating_source
            for guard in guards
            if guard.create_fn_name() == "TENSOR_MATCH"
            and getattr(builder.get(guard), optimizers.STATIC, None) == "unguarded"
        ],
    )


def facts(guards: Iterable[Guard], reader: object, described: Descriptions) -> list[GuardFact]:
    """Describe the values at the guards' sources. ``reader``: a GuardBuilder or a SourceReader. Raises NotPortable."""
    kept: list[GuardFact] = []
    for guard in guards:
        kind, parameters = _how(guard)
        try:
            fact = _fact(kind, parameters, guard, reader, described)
        except NotPortable as reason:
            raise NotPortable(f"{guard.name}: {kind}: {reason}", code=reason.code) from reason
        kept.append((guard.originating_source, kind, parameters, fact))
    return kept


def compare(kept: list[GuardFact], reader: SourceReader, described: Descriptions, *, check_source: bool = True) -> None:
    """Raise Mismatch unless every fact holds here. With ``check_source=False``, digests of code may differ."""
    described.recount()
    for number, (source, kind, parameters, fact) in enumerate(kept):
        if kind in NO_FACT:
            continue
        guard = Guard(source, getattr(GuardBuilder, kind))
        try:
            found = _fact(kind, parameters, guard, reader, described)
            if kind in _TENSORS and isinstance(reader.get(guard), FakeTensor):
                # Watch mode records fake tensors like real tensors. Compiled code needs real memory.
                raise Mismatch(f"{source.name} is a fake tensor")
            if kind in ("TENSOR_MATCH", "ID_MATCH"):
                _check_mark(source, kind, reader.get(guard))
        except Mismatch:
            raise
        except Exception as error:
            raise Mismatch(f"{source.name}: {kind}: {type(error).__name__}: {error}", number) from error
        if found != fact and (check_source or without_code(found) != without_code(fact)):
            raise Mismatch(f"{source.name}: {difference.fact(kind, found, fact).said(WHEN)}", number)


def _check_mark(source: Source, kind: str, value: object) -> None:
    """Raise Mismatch if a tensor is marked as static but was not when it was traced, or the reverse.

    A tensor that a compiled optimizer has marked is an attribute of the graph. Any other tensor is an input. So an
    entry with a marked tensor does not serve an unmarked tensor, and vice versa. Marked tensors of modules are exempt,
    because a trace marks them again.
    """
    marked = getattr(value, optimizers.STATIC, None) == optimizers.GUARDED
    if isinstance(value, torch.Tensor) and marked == (kind == "TENSOR_MATCH"):
        if marked and is_from_unspecialized_nn_module_source(source):
            return
        raise Mismatch(f"{source.name} is {'' if marked else 'not '}marked as static here")


def compare_values(kept: list[GuardFact], reader: SourceReader) -> None:
    """Like ``compare``, but only for constants. Skips values that cannot be read yet."""
    described = Descriptions()
    for number, (source, kind, _parameters, fact) in enumerate(kept):
        if kind in _VALUES:
            with contextlib.suppress(NotPortable):
                found = described.value(value_at(source, reader))
                if found != fact[: len(found)]:  # a set's fact also has the set's number (Descriptions.number)
                    raise Mismatch(f"{source.name}: {difference.fact(kind, found, fact).said(WHEN)}", number)


def about(
    guards: list[Guard], kept: Guards, inlined: list[tuple[list[Any], str]], seen: Sequence[Sequence[object]]
) -> About:
    """Describe the guards for reports such as ``precompiled explain``.

    The description contains no names that are specific to this process.
    """
    return About(
        guards=[
            GuardText(_name(source), kind, _parameters_text(source, parameters), fact, _place(guard))
            for guard, (source, kind, parameters, fact) in zip(guards, kept.guards, strict=True)
        ],
        inlined=[[f"{module}.{'.'.join(names)}", digest] for (module, names), digest in inlined],
        sizes={_name(source): known.get("size") for source, known in kept.sizes.items()},
        state=kept.global_state,
        seen=[[_name(what), fact] for what, fact in seen],
    )


def _parameters_text(source: Source, parameters: Mapping[str, object]) -> str:
    if source.name.endswith(NO_KEYS):
        return ""
    return ", ".join(f"{name}={_name(value)}" for name, value in sorted(parameters.items()))


def _name(value: object) -> str:
    return _NUMBERS.sub("#", _MADE_UP.sub("@", str(getattr(value, "name", value))))


def _place(guard: Guard) -> str:
    stack = guard.user_stack
    if not stack:
        return ""
    frame = innermost_users(stack, lambda item: item.filename)
    return f"{frame.filename}:{frame.lineno}, in {frame.name}"


def quick_fingerprint(value: object) -> str:
    """A cheap fingerprint of a local. It rules out most entries that other calls recorded."""
    if isinstance(value, torch.Tensor):
        return f"{value_facts.kind_of(value).__qualname__} {value.dtype} {value.dim()}"
    if isinstance(value, types.FunctionType):
        return f"function {value.__module__}.{value.__qualname__}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def guarded_locals(guards: list[Guard]) -> list[str]:
    """Names of the locals whose guards allow a single type."""
    kinds = {"TYPE_MATCH", "TENSOR_MATCH", "CLOSURE_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH"}
    return sorted(
        {
            guard.originating_source.local_name
            for guard in guards
            if type(guard.originating_source) is LocalSource and guard.create_fn_name() in kinds
        }
    )


def sizes_differ(kept: Guards, local: dict[str, Any]) -> str | None:
    """Return a message that names a tensor argument with sizes that the entry does not accept.

    None if the entry accepts all sizes.
    """
    for source, known in kept.sizes.items():
        if type(source) is LocalSource and isinstance(value := local.get(source.local_name), torch.Tensor):
            size = known.get("size")
            if size is not None and (
                len(size) != value.dim()
                or any(w is not None and w != h for w, h in zip(size, value.shape, strict=True))
            ):
                return f"L[{source.local_name!r}]: {difference.of_sizes(value.shape, size).said(WHEN)}"
    return None


def without_code(fact: object) -> object:
    """Remove the digests of code from a description."""
    if isinstance(fact, list):
        return [without_code(item) for item in fact]
    return "code" if isinstance(fact, str) and _DIGEST.fullmatch(fact) else fact


def _concrete(value: object) -> object:
    return pytree.tree_map(dynamo_guards.convert_int_to_concrete_values, value)


def _how(guard: Guard) -> tuple[str, dict[str, object]]:
    """A guard's kind (the GuardBuilder method that makes it), and its parameters."""
    make = guard.create_fn
    parameters: dict[str, object] = {}
    if isinstance(make, functools.partial):
        if make.args:
            raise NotPortable(f"the guard {guard.name} has arguments", code="package-guard")
        parameters = dict(make.keywords)
        make = make.func
    kind = make.__name__
    if getattr(GuardBuilder, kind, None) is not make:
        raise NotPortable(f"the guard {guard.name} is made by {kind}", code="package-guard")
    if kind in _TENSORS:
        parameters.pop("value", None)  # a weak reference to the value at its source
    unknown = set(parameters) - _PARAMETERS
    if unknown:
        raise NotPortable(f"the guard {kind} on {guard.name} takes {', '.join(sorted(unknown))}", code="package-guard")
    return kind, parameters


def _fact(
    kind: str, parameters: dict[str, Any], guard: Guard, builder: GuardBuilder, described: Descriptions
) -> object:
    if kind in NO_FACT:
        return None
    if kind == "HASATTR" and "attr" not in parameters:  # in torch 2.11, the attribute is the last part of the source
        source = guard.originating_source
        base = getattr(source, "base", None)
        if base is None or not hasattr(source, "member"):
            raise NotPortable(f"the guard HASATTR on {guard.name} has no attribute", code="package-guard")
        return hasattr(value_at(base, builder), source.member)
    value = builder.get(guard)
    if kind in _VALUES:
        # Two sets of equal content must differ in their facts, because the frame may add to one of them.
        return [*described.value(value), described.number(value)] if type(value) is set else described.value(value)
    if isinstance(value, (inspect.Signature, inspect.Parameter)):  # reads of its attributes have no guards
        return [described.thing(value), described.number(value)]
    if kind == "CLOSURE_MATCH" and isinstance(value, types.FunctionType):  # a guard on the function's __code__
        if is_torchs(value.__code__.co_filename):  # functions may share one code object (boolean_dispatch)
            return [described.function(value), described.number(value)]
        return [described.code_of(value), described.number(value), described.classes_in(value)]
    if kind in ranks.KINDS:
        return [described.thing(value), described.number(value)]
    if kind in _THINGS:
        # Dynamo guards only on the identity of the tensor or optimizer, so describe what a trace reads of it.
        if isinstance(value, torch.Tensor):
            return value_facts.exactly(value, described)
        if isinstance(value, torch.optim.Optimizer):
            return [described.a_class(type(value)), described.number(value), value_facts.attribute_names(value)]
        return [described.thing(value), described.number(value)]
    if kind == "TYPE_MATCH":
        return [
            described.a_class(type(value)),
            described.number(type(value)),
            described.number(value),
            value_facts.attribute_names(value),
            value_facts.hooks(value, described),
            value_facts.within(value, described),
        ]
    if kind == "TENSOR_MATCH":
        return [value_facts.tensor(value, described), described.number(value)]
    if kind == "NOT_NONE_MATCH":
        return value_facts.exactly(value, described)
    if kind in _LENGTHS:
        # an iterator has only a length hint
        length = len(value) if hasattr(value, "__len__") else operator.length_hint(value, -1)
        which = None if kind == "EMPTY_NN_MODULE_HOOKS_DICT" else described.number(value)
        return [described.a_class(type(value)), length, which]
    if kind in _KEYS:
        return [described.a_class(type(value)), keys_of(value, described)]
    if kind == "HASATTR":
        return hasattr(value, parameters["attr"])
    if kind in ("RANGE_ITERATOR_MATCH", "COUNT_ITERATOR_MATCH"):
        return repr(value)
    if kind == "DISPATCH_KEY_SET_MATCH":
        return repr(value)
    if kind == "TENSOR_SUBCLASS_METADATA_MATCH":
        return value_facts.metadata(value)
    raise NotPortable(f"no check exists for the guard {kind} on {guard.name}", code="package-guard")


def order_of(value: object, source: Source, described: Descriptions) -> object:
    """Describe the order of an iterated container. Dynamo may have no guard on the order."""
    if isinstance(value, (set, frozenset)):
        # ordered.py refuses traces that iterate over other sets.
        return [described.value(item) for item in value] if all(map(is_hashed_alike, value)) else None
    if not isinstance(value, dict) or source.name.endswith(NO_KEYS):
        return None
    # If the trace made a list of the dictionary, Dynamo has no guard on the keys.
    return keys_of(value, described)


def keys_of(value: Iterable[Any], described: Descriptions) -> list[object]:
    """Describe the keys of a dictionary or the items of a set, in order.

    A tensor is described by its number, a module by its class and number, anything else by its value.
    """
    return [_key(key, described) for key in value]


def _key(key: object, described: Descriptions) -> object:
    kind = type(key)
    if issubclass(kind, torch.Tensor):
        return described.number(key)
    if issubclass(kind, torch.nn.Module) and (kind.__hash__, kind.__eq__) == (object.__hash__, object.__eq__):
        return ["key", described.a_class(kind), described.number(key)]
    return described.value(key)


def codes_digest(guards: list[Guard]) -> str:
    """Return a digest of the guards' own expressions, without ids. The digest shows differences that descriptions
    miss.
    """
    lines = set()
    for guard in guards:
        for code in guard.code_list or ():
            # Cut off the type at the end of an expression, because its text may contain the file and line of a code
            # object.
            shown = _NUMBERS.sub("#", _MADE_UP.sub("@", code.partition(", type=")[0]))
            if "{" in shown:  # the order of a set's items may depend on addresses (as in pytree's BUILTIN_TYPES)
                shown = ", ".join(sorted(_ITEMS.split(shown)))
            lines.add(f"{guard.create_fn_name()} {shown}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


class SourceReader:
    """Reads values at sources, as GuardBuilder.get does."""

    def __init__(self, local: Mapping[str, object], scope: Mapping[str, object]) -> None:
        import builtins

        self._scope = {"L": local, "G": scope, "__builtins__": dict(vars(builtins))}
        self._closure = dynamo_guards._get_closure_vars()
        self._cache: dict[object, object] = {}

    def get(self, guard: Guard) -> Any:
        return guard.originating_source.get_value(self._scope, self._closure, self._cache)


def value_at(source: Source, reader: GuardBuilder | SourceReader) -> Any:
    """The value at a source. ``reader``: a GuardBuilder or a SourceReader. Raises NotPortable if the value cannot be
    read.
    """
    try:
        return reader.get(Guard(source, GuardBuilder.TYPE_MATCH))  # the kind has no effect here
    except Exception as error:
        raise NotPortable(
            f"{source.name} cannot be read: {type(error).__name__}: {error}", code="package-guard"
        ) from error


def functions_with_globals(
    scope: Mapping[str, object], guards: Iterable[Guard], reader: object
) -> list[tuple[object, str]]:
    """Find the functions whose ``__globals__`` is ``scope``.

    Returns (source, "") if the source's value is the function, else (source of an object, name of the function in the
    object or its class). Code that is generated at run time, such as a ``torch.fx.GraphModule``'s forward, has globals
    that belong to no module. In a later process each function may have its own globals, so all functions are returned.
    """
    found: list[tuple[object, str]] = []
    for source in sorted({guard.originating_source for guard in guards}, key=lambda source: source.name):
        with contextlib.suppress(NotPortable):
            value = value_at(source, reader)
            names = sorted({"", *vars(type(value)), *getattr(value, "__dict__", ())})
            found += [(source, name) for name in names if globals_of(value, name) is scope]
    return found


def globals_of(value: object, name: str) -> dict[str, object] | None:
    """The globals of a Python function, or of the function ``name`` of an object or its class; else None."""
    held = {**vars(type(value)), **getattr(value, "__dict__", {}), "": value}.get(name)
    return held.__globals__ if isinstance(held, types.FunctionType) else None
