"""Manages the keys of a user: the private key that signs objects in remotes, and the public keys that the user trusts.

::

    $XDG_CONFIG_HOME/precompiled/keys/     0700
      own.pem                              an ed25519 private key (PKCS #8), 0600: this host signs with it
      <id>.pub                             a trusted public key: a line with its 32 bytes in base64, and a name

An id is the first 16 digits of the SHA-256 of a public key's bytes. Like files of the store, a key file that another
user could have written is never trusted. ``cryptography`` is imported only when a key is created, loaded or used.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precompiled.core import durable, paths, words
from precompiled.core.errors import PrecompiledError
from precompiled.remote.errors import RemoteError
from precompiled.store import trust

OWN = "own.pem"
SUFFIX = ".pub"
KEY_BYTES = 32
_MAX_FILE_BYTES = 4096
_NEW_KEY = "Move it away, then run `precompiled remote keys new`"
_ID = re.compile(r"[0-9a-f]{16}")


class BadKey(PrecompiledError):
    """A key cannot be made, read or trusted. ``code`` states the reason."""


@dataclass(frozen=True)
class PublicKey:
    """A public key, trusted or not. ``name``: the owner's name or a label, for people."""

    data: bytes
    name: str

    @property
    def id(self) -> str:
        return hashlib.sha256(self.data).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{base64.b64encode(self.data).decode()} {self.name}"

    @staticmethod
    def parse(text: str) -> PublicKey:
        """The inverse of ``str``. Raises BadKey."""
        encoded, _, name = text.strip().partition(" ")
        try:
            data = base64.b64decode(encoded, validate=True)
            if len(data) != KEY_BYTES:
                raise ValueError(f"{len(data)} bytes")
        except ValueError as error:
            raise BadKey(
                f"{text[:80]!r} is not a public key: {error}",
                "Pass the line that `precompiled remote keys new` printed",
                code="bad-public-key",
            ) from error
        return PublicKey(data, " ".join(name.split())[:100])


def folder() -> Path:
    return paths.user_config_file().parent / "keys"


def own() -> object | None:
    """The private key of this user, or None. Raises RemoteError if the key is unusable."""
    try:
        with trust.open_directory(folder()) as fd:
            data = trust.read_file(OWN, fd, _MAX_FILE_BYTES, shown=str(folder() / OWN))
    except FileNotFoundError:
        return None
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise _unusable(f"{folder() / OWN} is not a private key: {error}", _NEW_KEY) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _unusable(f"{folder() / OWN} is not an ed25519 key", _NEW_KEY)
    return key


def public_of(private: Any, name: str = "") -> PublicKey:
    return PublicKey(private.public_key().public_bytes_raw(), name)


def trusted_keys() -> dict[str, PublicKey]:
    """Return the trusted keys of other users and hosts, as a map from id to key. Raises UntrustedStore if another user
    could have added a key.

    A key whose file name differs from its id is left out.
    """
    found = {}
    with suppress(FileNotFoundError), trust.open_directory(folder()) as fd:
        for name in sorted(os.listdir(fd)):
            if not name.endswith(SUFFIX) or not _ID.fullmatch(name.removesuffix(SUFFIX)):
                continue
            with suppress(FileNotFoundError, BadKey, UnicodeDecodeError):
                shown = str(folder() / name)
                key = PublicKey.parse(trust.read_file(name, fd, _MAX_FILE_BYTES, shown=shown).decode())
                if key.id == name.removesuffix(SUFFIX):
                    found[key.id] = key
    return found


def stamp() -> tuple[tuple[str, int, int], ...]:
    """A value that changes when a key is added or removed."""
    with suppress(OSError), os.scandir(folder()) as entries:
        return tuple(sorted((entry.name, (stat := entry.stat()).st_mtime_ns, stat.st_ino) for entry in entries))
    return ()


def new() -> PublicKey:
    """Make this user's own key. Raises BadKey if the user already has a key."""
    ed25519, serialization = _library()
    private = ed25519.Ed25519PrivateKey.generate()
    data = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _prepare()
    try:
        durable.write(folder() / OWN, data, 0o600)
    except FileExistsError as error:
        raise BadKey(
            f"{folder() / OWN} exists already",
            "Move it away, then create a new key, which the other hosts must trust",
            code="key-exists",
        ) from error
    return public_of(private)


def believe(key: PublicKey) -> Path:
    """Trust a key's signatures. Returns the path of the key's file."""
    _prepare()
    path = folder() / f"{key.id}{SUFFIX}"
    with durable.replacing(path, 0o600) as file:
        file.write(f"{key}\n".encode())
    return path


def disbelieve(id: str) -> bool:
    """Stop trusting a key. Returns whether it was trusted."""
    if not _ID.fullmatch(id):
        raise BadKey(f"{id[:80]!r} is not the id of a key", "See `precompiled remote keys list`", code="bad-public-key")
    try:
        (folder() / f"{id}{SUFFIX}").unlink()
        return True
    except FileNotFoundError:
        return False


def sign(private: Any, data: bytes) -> str:
    return base64.b64encode(private.sign(data)).decode()


def verifies(key: PublicKey, data: bytes, signature: str) -> bool:
    """Whether ``signature`` is ``key``'s signature of ``data``."""
    ed25519, _ = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key.data).verify(base64.b64decode(signature, validate=True), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _prepare() -> None:
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadKey(
            f"the folder of keys {str(folder())!r} cannot be created: {error.strerror}",
            "Set XDG_CONFIG_HOME to a directory that this user can write to",
            code="no-place",
        ) from error
    trust.check_stat(os.lstat(folder()), str(folder()), directory=True)


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        said = f"keys need the package cryptography, which cannot be imported: {error}"
        raise _unusable(said, words.install("remote")) from error
    return ed25519, serialization


def _unusable(message: str, advice: str) -> RemoteError:
    return RemoteError(message, advice, code="remote-unusable")
