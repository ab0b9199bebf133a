"""Saves the package of a compiled function to a file, and loads it on another host of the same kind.

``load`` verifies the file (portable_format.read), compares its requirements with this host, and publishes its entries
and artifacts in this process's store. With ``check_source=False``, the entries stay in memory. Loaded entries serve
calls like entries that this process recorded.
"""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path

from precompiled.client import session as sessions
from precompiled.client.process import PROCESS
from precompiled.core.errors import CorruptArtifact, PackageError
from precompiled.packages import automatic, entry_search, portable_format, requirements
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.describe.errors import Mismatch, NotPortable
from precompiled.packages.dynamo import dynamo_frames, installing
from precompiled.store import artifact_format
from precompiled.store import package_format as fmt
from precompiled.store.packages import Entry
from precompiled.version import VERSION

# Maps a requirement to the words of the error if this requirement differs. If several requirements differ, the error
# names the first in this order.
_NAMED = {
    "torch": "another torch",
    "python": "another Python",
    "machine": "a different kind of machine",
    "cpu": "another CPU",
    "gpu": "another GPU",
    "devices": "another GPU",
    "triton": "another triton",
    "variables": "other environment variables",
    "inductor": "different settings of Inductor",
    "dynamo": "different settings of Dynamo",
}


def save(compiled: object, path: str | Path) -> None:
    """Implement ``precompiled.save_package``."""
    owner, target = _target(compiled)
    here = PROCESS.packages
    if here is not None and not here.flush(60.0):
        raise PackageError("the recorded entries are not written yet", "Try again", code="package-busy")
    session = sessions.current()
    packages = session.store.packages
    wanted = list(dict.fromkeys(dynamo_frames.entries_of(owner)))
    entries = []
    for function, name in wanted:
        try:
            entries.append(packages.read(function, name))
        except FileNotFoundError as error:
            dynamo_frames.entries_of(owner).clear()
            raise PackageError(
                f"the entry {name[:12]} was evicted",
                "Call torch.compiler.reset(), then the function, then save",
                code="package-evicted",
            ) from error
    if not any(entry.header.kind == "compiled" for entry in entries):
        reasons = [
            f"{report.name}: {report.reason}: {report.message}"
            for report in (here.reports if here is not None else ())
            if report.reason
        ]
        raise PackageError(
            "the function has no recorded entries" + (f" ({reasons[-1]})" if reasons else ""),
            "Call it with the hook and packages on, then save",
            code="package-empty",
        )
    members: dict[str, bytes] = {}
    for entry in entries:
        # The loading process decides for which program the entry is valid.
        header = dataclasses.replace(entry.header, sources="", sources_code="")
        name, content = fmt.seal(header, fmt.About.parse(entry.about).without_places().to_bytes(), entry.body)
        members[f"entries/{entry.header.function}/{name}"] = content
    for key in dict.fromkeys(key for entry in entries for key in entry.header.artifacts):
        artifacts = session.store.lookup(key)
        if not artifacts:
            raise PackageError(
                f"the artifact {key[:12]} of it is not in the store",
                "Wait until it is compiled (precompiled.wait()), then save",
                code="package-artifact-missing",
            )
        for artifact in artifacts:
            folder = f"artifacts/{key}.{artifact.slot}"
            files = session.store.read_files(artifact)
            # The captured graph contains lines of the user's code, and is needed only to compile for sizes that no
            # artifact serves. So the package omits the captured graph if an artifact serves all sizes.
            if artifact.manifest.guards and artifact_format.PROGRAM in artifact.manifest.files:
                files |= session.store.read_some(artifact, [artifact_format.PROGRAM])
            manifest = dataclasses.replace(
                artifact.manifest,
                files={name: record for name, record in artifact.manifest.files.items() if name in files},
            )
            members[f"{folder}/{artifact_format.MANIFEST}"] = artifact_format.seal(manifest)
            members |= {f"{folder}/{name}": data for name, data in files.items()}
    requires = next(entry.header.requires for entry in entries if entry.header.kind == "compiled")
    functions = [
        {
            "name": f"{entry.header.module}.{entry.header.qualname}",
            "kind": entry.header.kind,
            "guards": entry.header.guards,
            "graphs": len(entry.header.artifacts),
        }
        for entry in entries
    ]
    index = portable_format.Index(
        target.__module__, target.__qualname__, code_digest(target.__code__), requires, functions, made_by=VERSION
    )
    portable_format.write(Path(path), index, members)


def load(compiled: object, path: str | Path, *, check_source: bool = True) -> int:
    """Implement ``precompiled.load_package``."""
    _owner, target = _target(compiled)
    index, members = portable_format.read(Path(path))
    _check_function(index, target, Path(path), check_source=check_source)
    here = requirements.requirements({})
    for name in [*_NAMED, *sorted({*index.requires, *here} - set(_NAMED))]:
        if name not in ("inductor", *_OF_A_CALL) and index.requires.get(name) != here.get(name):
            raise PackageError(
                f"{path} is for {_NAMED.get(name, f'another {name}')}: {index.requires.get(name)}, "
                f"and here is {here.get(name)}",
                "Save it on a host of this kind",
                code="package-environment",
            )
    try:
        entries = [_entry(name, data) for name, data in members.items() if name.startswith("entries/")]
        if check_source:
            _check_inlined(entries, Path(path))
        session = sessions.current()
        _publish_artifacts(session, members)
    except (CorruptArtifact, ValueError, KeyError) as error:  # ValueError and KeyError: malformed names of members
        said = error.message if isinstance(error, CorruptArtifact) else f"it has other members than a package: {error}"
        raise PackageError(f"{path}: {said}", "Save it again", code="package-corrupt") from error
    packages = automatic.switch_on()
    store = session.store.packages
    for entry in entries:
        if check_source:
            store.publish(entry.header, entry.about, entry.body)
        else:
            header = entry.header
            packages.search.unchecked.setdefault((header.module, header.qualname, header.one_graph), []).append(entry)
    return len(entries)


# Requirements that are compared at each call, and not when a file is loaded.
_OF_A_CALL = ("device", "module hooks", "forward-mode level")


def _target(compiled: object) -> tuple[object, types.FunctionType]:
    try:
        return dynamo_frames.unwrap_compiled(compiled)
    except NotPortable as reason:
        raise PackageError(reason.message, "Pass what torch.compile() returned", code=reason.code) from reason


def _check_function(
    index: portable_format.Index, target: types.FunctionType, path: Path, *, check_source: bool
) -> None:
    if (index.module, index.qualname) != (target.__module__, target.__qualname__):
        raise PackageError(
            f"{path} is for {index.module}.{index.qualname}, not for {target.__module__}.{target.__qualname__}",
            "Load it into the function that was saved",
            code="package-function",
        )
    if check_source and index.code != code_digest(target.__code__):
        raise PackageError(
            f"the source of {index.module}.{index.qualname} has changed since {path} was saved",
            "Save it again, or load it with check_source=False if the change does not matter",
            code="package-source",
        )


def _check_inlined(entries: list[Entry], path: Path) -> None:
    for entry in entries:
        if entry.header.kind == "compiled":
            try:
                body = entry_search.decode_body(entry)
            except Mismatch:  # a module is not imported; the function's call imports it and compares again
                continue
            changed = installing.changed_source(body.inlined)
            if changed is not None:
                raise PackageError(
                    f"the source of {changed} has changed since {path} was saved",
                    "Save it again, or load it with check_source=False if the change does not matter",
                    code="package-source",
                )


def _entry(member: str, data: bytes) -> Entry:
    _folder, function, name = member.split("/")
    return Entry(Path(name), *fmt.open_entry(name, data, function))


def _publish_artifacts(session: sessions.Session, members: dict[str, bytes]) -> None:
    folders = sorted({name.split("/")[1] for name in members if name.startswith("artifacts/")})
    for folder in folders:
        start = f"artifacts/{folder}/"
        files = {name.removeprefix(start): data for name, data in members.items() if name.startswith(start)}
        key = folder.rpartition(".")[0]
        manifest = artifact_format.open_manifest(files.pop(artifact_format.MANIFEST), key)
        if {name: record.digest for name, record in manifest.files.items()} != {
            name: artifact_format.digest(data) for name, data in files.items()
        }:
            raise CorruptArtifact(f"the artifact {key[:12]} does not match its manifest")
        present = {(there.manifest.guards, there.manifest.tier) for there in session.store.lookup(key)}
        if (manifest.guards, manifest.tier) not in present:
            session.store.publish(artifact_format.Payload(manifest, files))
