"""The users of a broker, as they are stored: what their passwords are checked against, never a password.

```
document "users" of the store's registry
  secret    32 random bytes, from which salts for users that do not exist are made
  users     {name: {mechanism: {iterations, salt, stored_key, server_key}}}, bytes as base64
```

Safe for threads and processes: changes go through the registry, one at a time.

The users that a running broker knows, in memory: looking one up takes the same time whether it exists or not.

A user that does not exist gets a credential that nothing matches, with a salt that is the same each time it is asked
for: who is answered cannot tell whether the name exists. Salt length and iterations are those of one of the users,
chosen by the name: those that few users have are met as rarely among names that do not exist.

Belongs to the event loop's thread.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import CorruptFile, InvalidConfig, UserNotFound
from ...store.base import DocumentRegistry
from ...store.directory.documents import Document
from .mechanisms import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, SALT_BYTES, SHA_512, Credential, Mechanism, Salted

DOCUMENT: Final = "users"
_SECRET_BYTES: Final = 32
_LONGEST_NAME: Final = 255
#: The name of those who have none.
NOBODY: Final = "ANONYMOUS"
#: The principal of a client that has not authenticated.
ANONYMOUS: Final = f"User:{NOBODY}"
#: The credentials of a user, by mechanism.
Credentials = Mapping[str, Credential]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All users, in one version of the document."""

    version: int
    users: Mapping[str, Credentials]
    secret: bytes = field(repr=False)


class Users:
    """The users of one store."""

    def __init__(self, registry: DocumentRegistry) -> None:
        self._registry = registry

    def read(self) -> Snapshot:
        """All users as they are now."""
        return _snapshot(self._registry.read(DOCUMENT))

    def prepare(self) -> Snapshot:
        """The same; the first time the secret is made, so that answers about unknown users stay the same."""
        found = self.read()
        return found if found.secret else self._change(lambda users: None)

    def list(self) -> dict[str, dict[str, int]]:
        """The names of all users, sorted, with the iterations of each mechanism."""
        return {
            name: {mechanism: each.iterations for mechanism, each in sorted(credentials.items())}
            for name, credentials in sorted(self.read().users.items())
        }

    def put(self, name: str, salted: Sequence[Salted]) -> None:
        """Add a user, or replace its passwords: with mechanisms that are not given it cannot authenticate any more."""
        check_name(name)
        for each in salted:
            check_salted(each)
        made = {each.mechanism.name: _stored(each.credential()) for each in salted}

        def edit(users: dict[str, Any]) -> None:
            users[name] = made

        self._change(edit)

    def delete(self, name: str) -> None:
        """Delete a user. Connections that it has go on."""

        def edit(users: dict[str, Any]) -> None:
            if users.pop(name, None) is None:
                raise UserNotFound(f"no user {name!r}")

        self._change(edit)

    def alter(self, deletions: Sequence[tuple[str, Mechanism]], upsertions: Sequence[tuple[str, Salted]]) -> set[str]:
        """Change single credentials, in one step. Returns the names of users that lacked what was to be deleted;
        nothing of these is changed. Everything else must have been checked."""
        lacking: set[str] = set()

        def edit(users: dict[str, Any]) -> None:
            lacking.clear()
            lacking.update(name for name, mechanism in deletions if mechanism.name not in users.get(name, {}))
            for name, mechanism in deletions:
                if name not in lacking:
                    users[name] = {key: each for key, each in users[name].items() if key != mechanism.name}
            for name, salted in upsertions:
                if name not in lacking:
                    users[name] = {**users.get(name, {}), salted.mechanism.name: _stored(salted.credential())}
            for name in {name for name, _ in deletions}:
                if users.get(name) == {}:
                    del users[name]

        self._change(edit)
        return lacking

    def _change(self, edit: Callable[[dict[str, Any]], None]) -> Snapshot:
        def edited(fields: Mapping[str, Any]) -> Mapping[str, Any]:
            users = dict(fields.get("users", {}))
            edit(users)
            secret = fields.get("secret") or _text(secrets.token_bytes(_SECRET_BYTES))
            return {"secret": secret, "users": users}

        return _snapshot(self._registry.change(DOCUMENT, edited))


def check_name(name: str) -> None:
    """Whether a user can have this name; `InvalidConfig`."""
    if not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise InvalidConfig(f"a user's name has 1 to {_LONGEST_NAME} printable characters, and no spaces around it")
    if name == NOBODY:
        raise InvalidConfig(f"{NOBODY} is the name of those who are not authenticated")


def check_salted(salted: Salted) -> None:
    """Whether a salted password can be stored; `InvalidConfig`."""
    if not MIN_ITERATIONS <= salted.iterations <= MAX_ITERATIONS:
        raise InvalidConfig(f"iterations must be from {MIN_ITERATIONS} to {MAX_ITERATIONS}, not {salted.iterations}")
    if not 1 <= len(salted.salt) <= 1024:  # how long a good one is, is for who makes it: Kafka takes any
        raise InvalidConfig(f"a salt has 1 to 1024 bytes, not {len(salted.salt)}")
    if len(salted.password) != salted.mechanism.size_bytes:
        raise InvalidConfig(f"a salted password has {salted.mechanism.size_bytes} bytes, not {len(salted.password)}")


# --- the document


def _snapshot(document: Document) -> Snapshot:
    try:
        users = {
            name: {
                mechanism: Credential(
                    int(each["iterations"]), *(_bytes(each[key]) for key in ("salt", "stored_key", "server_key"))
                )
                for mechanism, each in credentials.items()
                if mechanism in MECHANISMS
            }
            for name, credentials in document.fields.get("users", {}).items()
        }
        return Snapshot(document.version, users, _bytes(document.fields.get("secret", "")))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"the stored users cannot be read: {type(error).__name__}") from None


def _stored(credential: Credential) -> dict[str, Any]:
    return {
        "iterations": credential.iterations,
        "salt": _text(credential.salt),
        "stored_key": _text(credential.stored_key),
        "server_key": _text(credential.server_key),
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error


#: What others see of a credential: the iterations and the length of the salt.
_Shape = tuple[int, int]
#: That of a new user.
_USUAL: Final[_Shape] = (MAX_ITERATIONS, SALT_BYTES)


class KnownUsers:
    """All users, as they were when they were last looked at."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now = snapshot
        self._shapes = _shapes(snapshot)

    @property
    def version(self) -> int:
        """The version of the document."""
        return self._now.version

    @property
    def names(self) -> Set[str]:
        """All names."""
        return self._now.users.keys()

    def replace(self, snapshot: Snapshot) -> None:
        """Know these from now on. What is older than what is known is ignored: it was read before a change."""
        if snapshot.version > self._now.version:
            self._now, self._shapes = snapshot, _shapes(snapshot)

    def finder(self, mechanism: Mechanism) -> Callable[[str], Credential]:
        """Look up credentials of one mechanism."""
        return lambda name: self.find(name, mechanism)

    def find(self, name: str, mechanism: Mechanism) -> Credential:
        """The credential of a user, or one that nothing matches."""
        pretended = self._pretended(name, mechanism)  # always made: it must not take longer for one of the two
        return self._now.users.get(name, {}).get(mechanism.name, pretended)

    def strongest(self, name: str, mechanisms: tuple[Mechanism, ...]) -> tuple[Mechanism, Credential]:
        """For a check of a password: the first of these mechanisms for which the user has a credential."""
        known = self._now.users.get(name)
        for mechanism in mechanisms:
            if mechanism.name in (self._shapes if known is None else known):
                return mechanism, self.find(name, mechanism)
        return SHA_512, self._pretended(name, SHA_512)

    def _pretended(self, name: str, mechanism: Mechanism) -> Credential:
        def made(what: str) -> bytes:
            return hmac.digest(self._now.secret, f"{what}\0{mechanism.name}\0{name}".encode(), "sha512")

        def score(shape: _Shape) -> float:
            point = int.from_bytes(made(f"shape {shape[0]} {shape[1]}")[:6], "big") + 1
            return math.log(point / (1 << 48)) / shapes[shape]  # so that a new shape moves few names, to it alone

        shapes = self._shapes.get(mechanism.name) or {_USUAL: 1}
        iterations, length = max(sorted(shapes), key=score)
        size = mechanism.size_bytes
        salt = (made("salt") * (length // 64 + 1))[:length]
        return Credential(iterations, salt, made("stored key")[:size], made("server key")[:size])


def _shapes(snapshot: Snapshot) -> dict[str, Counter[_Shape]]:
    """For each mechanism how many of its users have which shape."""
    counts: dict[str, Counter[_Shape]] = {}
    for credentials in snapshot.users.values():
        for mechanism, each in credentials.items():
            counts.setdefault(mechanism, Counter())[each.iterations, len(each.salt)] += 1
    return counts
