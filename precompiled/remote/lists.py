"""Lists, in the remote, the objects that a program used last, so that a new host can fetch them at once.

::

    programs/<program>/<label>-<by>-<digest>     one or more lists per writer, each an object as in envelope.py
    body = {"objects": [[path, size]*]}          JSON; the last used object first

A list is a hint: a host verifies each listed object like any other object, and finds unlisted objects by their keys. If
a program used an object that no list names, its host uploads a new list with this object and the content of the
existing lists. The host then removes its own older lists.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from precompiled.core.errors import CorruptArtifact
from precompiled.core.json_text import parse_json
from precompiled.remote import envelope as form
from precompiled.remote.envelope import ARTIFACT, ENTRY, KERNEL, LIST, Object
from precompiled.remote.errors import ObjectRejected
from precompiled.remote.transfer import Transfer
from precompiled.store import package_format

LABEL = f"{1:016x}"  # the format's version
MAX_LISTED = 2000
MAX_LISTS = 8  # the number of lists that are read


def read_lists(there: Transfer, program: str) -> tuple[list[Object], list[Object]]:
    """Return the trusted lists of a program, and the objects that they name. Raises RemoteError."""
    lists: list[Object] = []
    found: dict[str, Object] = {}
    for item in there.objects(LIST, program):
        if item.label != LABEL or not there.trust.believes(item.by) or there.is_refused(item):
            continue
        if len(lists) >= MAX_LISTS:
            break
        try:
            objects = _parsed(there.body(item))
        except (ObjectRejected, CorruptArtifact) as error:
            there.refuse(item, error)
        except FileNotFoundError:
            continue  # the list's writer has replaced it meanwhile
        else:
            lists.append(item)
            found.update((one.path, one) for one in objects)
    return lists, list(found.values())


def _parsed(body: bytes) -> list[Object]:
    try:
        named = parse_json(body)["objects"][:MAX_LISTED]
        found = [form.object_at(str(path), int(size)) for path, size in named]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptArtifact(f"a program's list in a remote cannot be read: {error}") from error
    return [item for item in found if item is not None and item.kind != LIST]


def note(
    there: Transfer,
    program: str,
    keys: Collection[str],
    fresh: Collection[str],
    entries: Iterable[tuple[str, str]],
    kernels: Collection[str] = (),
) -> bool:
    """Add the objects that a program has used to the program's lists. Returns whether a list was written. Raises
    RemoteError.

    ``fresh``: keys with a variant that the remote may have and the lists lack. ``entries``: each entry's (function,
    file name). ``kernels``: the keys of Triton kernels.
    """
    if not there.trust.by:
        return False
    lists, known = read_lists(there, program)
    groups, names = {item.group for item in known}, {(item.group, item.label) for item in known}
    wanted = {(function, name.removesuffix(package_format.SUFFIX)) for function, name in entries} - names
    found = [item for key in keys if key not in groups or key in fresh for item in there.objects(ARTIFACT, key)]
    found += [item for key in kernels if key not in groups for item in there.objects(KERNEL, key)]
    for function in {function for function, _label in wanted}:
        found += [item for item in there.objects(ENTRY, function) if (function, item.label) in wanted]
    paths = {item.path for item in known}
    new = [item for item in found if item.path not in paths and there.trust.believes(item.by)]
    if not new:
        return False
    body = {"objects": [[item.path, item.size] for item in [*new, *known][:MAX_LISTED]]}
    written = there.write(LIST, program, LABEL, json.dumps(body).encode())
    for item in lists:
        if item.by == there.trust.by and item.path != written:
            there.bucket.remove(item.path)
    return True
