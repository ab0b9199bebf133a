"""Describes in words how two calls differ.

``fact`` compares two descriptions (descriptions.py) of the value at one guard. ``entries`` compares the
package_format.About of two entries of one function. This module needs no torch and runs no code of an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from precompiled.core.json_text import parse_json
from precompiled.store.package_format import About, Header

MAX_CHARS = 120
# The parts of a tensor's description, in the order of value_facts.tensor.
TENSOR = (
    "class",
    "dtype",
    "device",
    "layout",
    "requires_grad",
    "dispatch keys",
    "dimension marks",
    "memory",
    "is_leaf",
    "aligned",
    "is a view",
    "is a parameter",
    "is a buffer",
)
# The names of the parts of a description that begins with an item of _CODE_OF.
_PARTS = ("", "", "", "code", "defaults", "closure", "attributes")
LENGTHS = ("SEQUENCE_LENGTH", "TUPLE_ITERATOR_LEN", "EMPTY_NN_MODULE_HOOKS_DICT")
_CODE_OF = ("class", "function", "code of")
MEMORY = "it shares its memory with other inputs, or begins at a different offset"
_NUMBERS = ("int", "float")
_NUMBER_TYPES = [["class", "builtins", name] for name in _NUMBERS]
IDENTITY = "it is a different object of the call"


@dataclass(frozen=True)
class Difference:
    """A difference, with both values if they help the user."""

    what: str
    here: str = ""
    before: str = ""

    def said(self, before: str) -> str:
        """The difference as a phrase. ``before``: when or where the other value was seen."""
        if not self.here and not self.before:
            return self.what
        return f"{f'{self.what} ' if self.what else ''}{self.here} here, {self.before} {before}"


@dataclass(frozen=True)
class EntryDifference:
    """A difference between two entries of one function. ``where`` is the source of the guarded value, or "".

    ``place`` is the line of code with the guard, or "".
    """

    where: str
    difference: Difference
    place: str = ""

    @property
    def is_identity(self) -> bool:
        """Whether the difference is in the identity of an object or of its memory. Such a difference usually follows
        from another difference, which is the cause.
        """
        return self.difference.what in (IDENTITY, MEMORY)

    @property
    def is_value(self) -> bool:
        """Whether two constants differ, such as ``self.config.n_layer``."""
        return bool(self.where and self.difference.here and not self.difference.what)

    def said(self, before: str) -> str:
        """The difference as a phrase. ``before``: when or where the other value was seen."""
        return f"{f'{self.where}: ' if self.where else ''}{self.difference.said(before)}{at(self.place)}"

    def __str__(self) -> str:
        return self.said("there")


def fact(kind: str, here: Any, before: Any) -> Difference:
    """The first difference between two facts of one guard. ``kind``: the guard's method of GuardBuilder."""
    if kind == "TENSOR_MATCH" and _alike(here, before) and here[0] != before[0]:
        index = _first(here[0], before[0])
        if index is not None and TENSOR[index] == "memory":
            return Difference(MEMORY)
        if index is not None:
            return _both(TENSOR[index], here[0][index], before[0][index])
    if kind in LENGTHS and _alike(here, before) and here[0] == before[0] and here[1] != before[1]:
        return _both("length", here[1], before[1])
    if kind == "TYPE_MATCH" and _alike(here, before) and here[:3] == before[:3]:
        if here[3] != before[3]:
            return _both("attributes", sorted({*here[3]} - {*before[3]}), sorted({*before[3]} - {*here[3]}))
        if here[4] != before[4]:
            return _both("hooks", here[4], before[4])
        return Difference("the decorator or method has a different argument")
    return _of(here, before)


def entries(one: tuple[Header, About], other: tuple[Header, About]) -> list[EntryDifference]:
    """Describe how the calls of two entries differ: the calls for which the entries were recorded.

    Ignores a guard that only one entry has, unless the guard fixes a number.

    The phrases call the first entry "here", and the second "there".
    """
    (header, here), (other_header, there) = one, other
    said = [
        requirement(name, header.requires.get(name), other_header.requires.get(name), "there")
        for name in sorted({*header.requires, *other_header.requires})
        if header.requires.get(name) != other_header.requires.get(name)
    ]
    # Several inner functions may have the same name, so a name may have several codes.
    codes, other_codes = _by_name(here.inlined), _by_name(there.inlined)
    said += [f"the source of {name} differs" for name in codes if codes[name] != other_codes.get(name, codes[name])]
    found = [EntryDifference("", Difference(text)) for text in said]
    facts = {(guard.source, guard.kind, guard.parameters): guard.fact for guard in there.guards}
    for guard in here.guards:
        place = (guard.source, guard.kind, guard.parameters)
        if place in facts and facts[place] != guard.fact:
            found.append(EntryDifference(guard.source, fact(guard.kind, guard.fact, facts[place]), guard.place))
    found += _fixed_numbers(here, there)
    facts_seen = {what: value for what, value in there.seen}
    found += [
        EntryDifference(what, _of(value, facts_seen[what]))
        for what, value in here.seen
        if what in facts_seen and facts_seen[what] != value
    ]
    found += [
        EntryDifference(source, of_sizes(size, there.sizes[source]))
        for source, size in here.sizes.items()
        if source in there.sizes and there.sizes[source] != size
    ]
    if here.state != there.state:
        found.append(EntryDifference("", Difference(state(here.state, there.state, "there"))))
    return found


# Maps each requirement whose value is a digest (packages/requirements.py) to the message for a difference.
_DIGESTS = {
    "inductor": "Inductor's settings differ (torch._inductor.config, mode=, options=); the graph's miss names them",
    "dynamo": "Dynamo's settings differ (torch._dynamo.config, stances, torch.compiler.allow_in_graph)",
    "replaced functions": "the program replaced different functions of torch, or replaced them by different code",
}


def requirement(name: str, here: str | None, before: str | None, when: str) -> str:
    """Say how one requirement differs. ``when``: when or where the other value was seen."""
    return _DIGESTS.get(name) or f"{name}: {_both('', here or 'none', before or 'none').said(when)}"


def state(here: str, before: str, when: str) -> str:
    """Say how Dynamo's global state differs, part by part if both states are JSON objects."""
    try:
        one, other = (dict(parse_json(kept)) for kept in (here, before))
    except (ValueError, TypeError):
        return "the global state differs (grad mode, autocast, precision, threads)"
    differing = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    said = [_both(name.replace("_", " "), one.get(name), other.get(name)).said(when) for name in differing]
    return f"global state: {', '.join(said)}"


def of_sizes(here: object, before: object) -> Difference:
    """The difference between two tensors' sizes. None means any size, or any number of dimensions."""
    return Difference("sizes", _sizes(here), _sizes(before))


def _fixed_numbers(here: About, there: About) -> Iterator[EntryDifference]:
    """The numbers that are constants in one entry and dynamic in the other.

    The other entry guards only the types of these numbers.
    """
    (constants, types), (other_constants, other_types) = _numbers(here), _numbers(there)
    for source in (*types, *constants):
        one, other = constants.get(source) or types.get(source), other_constants.get(source) or other_types.get(source)
        if one and other and (source in constants) != (source in other_constants):
            guards = here.guards if source in constants else there.guards
            place = next(guard.place for guard in guards if guard.source == source)
            yield EntryDifference(source, Difference("", one, other), place)


def _numbers(about: About) -> tuple[dict[str, str], dict[str, str]]:
    """Two tables of guarded ints and floats: those with a guarded value, and those with a guarded type only."""
    constants = {
        guard.source: constant(guard.fact)
        for guard in about.guards
        if constant(guard.fact) and guard.fact[0] in _NUMBERS
    }
    types = {
        guard.source: f"any {guard.fact[0][2]}"
        for guard in about.guards
        if guard.kind == "TYPE_MATCH" and guard.source not in constants and _is_number_type(guard.fact)
    }
    return constants, types


def _is_number_type(fact: Any) -> bool:
    return isinstance(fact, list) and len(fact) > 0 and fact[0][:3] in _NUMBER_TYPES


def _by_name(inlined: list[list[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, digest in inlined:
        found.setdefault(name, set()).add(digest)
    return found


def _sizes(size: Any) -> str:
    return "any" if size is None else f"[{', '.join('any' if item is None else str(item) for item in size)}]"


def at(place: str) -> str:
    """A place in the user's source, as text for the end of a sentence."""
    return f" ({place})" if place else ""


def _of(here: Any, before: Any) -> Difference:
    if not _alike(here, before):
        return _both("", here, before)
    index = _first(here, before)
    if index is None:
        return _both("", here, before)
    if here[0] == before[0] and here[0] in _CODE_OF:
        if index < 3:
            return _both("", here, before)
        part, name = _PARTS[index], f"{here[1]}.{here[2]}"
        if part == "code":
            return Difference(f"the code of {name} differs")
        inner = _of(here[index], before[index])
        return Difference(f"the {part} of {name}: {inner.what}".rstrip(), inner.here, inner.before)
    left, right = here[index], before[index]
    if index > 0 and type(left) is int and type(right) is int:  # numbers from Descriptions.number
        return Difference(IDENTITY)
    if isinstance(left, list) and isinstance(right, list):
        return _of(left, right)
    return _both("", here if len(here) <= 3 else left, before if len(before) <= 3 else right)


def _alike(here: object, before: object) -> bool:
    return isinstance(here, list) and isinstance(before, list) and len(here) == len(before) > 0


def _first(here: list[Any], before: list[Any]) -> int | None:
    if len(here) != len(before):
        return None
    return next((index for index, (a, b) in enumerate(zip(here, before, strict=True)) if a != b), None)


def _both(what: str, here: object, before: object) -> Difference:
    return Difference(what, _shown(here), _shown(before))


def constant(value: Any) -> str:
    """The repr of a described constant; "" for any other description."""
    return _shown(value) if _is_constant(value) else ""


def _is_constant(value: Any) -> bool:
    plain = isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value)
    return plain and value[0] in ("bool", "int", "float", "complex", "str", "bytes", "NoneType")


def _shown(value: Any) -> str:
    """Show a description in a few words: a constant as its repr, a class or function as its name."""
    if _is_constant(value):
        text = value[1]
    elif isinstance(value, list) and value and value[0] in (*_CODE_OF, "module"):
        text = " ".join(map(str, [value[0], ".".join(map(str, value[1:3]))]))
    elif isinstance(value, list) and value and all(isinstance(item, list) and item for item in value):
        text = f"[{', '.join(map(_shown, value))}]"
    else:
        text = value if isinstance(value, str) else repr(value)
    return text if len(text) < MAX_CHARS else text[: MAX_CHARS - 3] + "..."
