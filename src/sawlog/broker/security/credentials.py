"""The users of a broker: verifiers for their passwords, never the passwords themselves.

A verifier (`Credential`) is derived from a password that is hashed with a salt (`Salted`). With `stored_key` the broker
verifies a proof but cannot create one; with `server_key` it proves that it knows the user. Passwords and names are used
as UTF-8 bytes without SASLprep, as in Kafka's brokers and clients: normalizing a password here would make it differ
from the client's.

`StoredUsers` reads and changes the document "users" of the store's registry. It is safe for threads and processes: the
registry serializes changes.

```
secret    32 random bytes, from which salts for nonexistent users are derived
users     {name: {mechanism: {iterations, salt, stored_key, server_key}}}, bytes as base64
```

`UserCache` holds the users of a running broker in memory and belongs to the event loop's thread. Lookups take the same
time whether or not the user exists. A nonexistent user gets a credential that nothing matches, with a salt that is the
same on every attempt, so a client cannot tell whether a name exists. Its salt length and iterations are those of an
existing user, chosen by the name: a rare combination is as rare among nonexistent names.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import CorruptFile, InvalidConfig, UserNotFound
from ...store.base import Document, DocumentRegistry

# --- hashed passwords


PLAIN: Final = "PLAIN"
#: Kafka's limits. Fewer iterations make guessing too easy; more could keep a client busy.
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Mechanism:
    """SCRAM with one hash function."""

    name: str
    #: Name in `hashlib`.
    hash: str
    #: Kafka's number.
    number: int

    def digest(self, data: bytes) -> bytes:
        return hashlib.new(self.hash, data).digest()

    def sign(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash)

    def salted(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Hash a password with a salt, which takes milliseconds. The result is as sensitive as the password."""
        return hashlib.pbkdf2_hmac(self.hash, password.encode(), salt, iterations)

    @property
    def size_bytes(self) -> int:
        return hashlib.new(self.hash).digest_size


SHA_256: Final = Mechanism("SCRAM-SHA-256", "sha256", 1)
SHA_512: Final = Mechanism("SCRAM-SHA-512", "sha512", 2)
#: Strongest first.
MECHANISMS: Final = {each.name: each for each in (SHA_512, SHA_256)}
BY_NUMBER: Final = {each.number: each for each in MECHANISMS.values()}
#: Supported mechanisms, by Kafka's names.
OFFERED: Final = (*MECHANISMS, PLAIN)


@dataclass(frozen=True, slots=True)
class Salted:
    """A salted password, from which credentials are derived. Kafka's admin clients send it."""

    mechanism: Mechanism
    iterations: int
    salt: bytes = field(repr=False)
    password: bytes = field(repr=False)

    @classmethod
    def new(cls, mechanism: Mechanism, password: str, iterations: int = MAX_ITERATIONS) -> Salted:
        """Hash a password with a new random salt."""
        salt = secrets.token_bytes(SALT_BYTES)
        return cls(mechanism, iterations, salt, mechanism.salted(password, salt, iterations))

    def credential(self) -> Credential:
        """Derive the part that a server stores."""
        sign = self.mechanism.sign
        stored_key = self.mechanism.digest(sign(self.password, b"Client Key"))
        return Credential(self.iterations, self.salt, stored_key, sign(self.password, b"Server Key"))


@dataclass(frozen=True, slots=True)
class Credential:
    """The verifier that a server stores for a password."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def matches(self, mechanism: Mechanism, password: str) -> bool:
        """Return whether the password is correct. Takes as long as hashing it in either case."""
        salted = mechanism.salted(password, self.salt, self.iterations)
        made = Salted(mechanism, self.iterations, self.salt, salted).credential()
        return hmac.compare_digest(made.stored_key, self.stored_key)


# --- users


DOCUMENT: Final = "users"
_SECRET_BYTES: Final = 32
_MAX_NAME_LENGTH: Final = 255
#: Name of an unauthenticated client.
ANONYMOUS_NAME: Final = "ANONYMOUS"
#: Principal of an unauthenticated client.
ANONYMOUS: Final = f"User:{ANONYMOUS_NAME}"
#: A user's credentials, by mechanism.
Credentials = Mapping[str, Credential]


@dataclass(frozen=True, slots=True)
class UserSnapshot:
    """All users in one version of the document."""

    version: int
    users: Mapping[str, Credentials]
    secret: bytes = field(repr=False)


class StoredUsers:
    """The users of one store."""

    def __init__(self, registry: DocumentRegistry) -> None:
        self._registry = registry

    def read(self) -> UserSnapshot:
        return _snapshot(self._registry.read(DOCUMENT))

    def prepare(self) -> UserSnapshot:
        """Read the users; create the secret if missing, so that the answers about unknown users stay the same."""
        found = self.read()
        return found if found.secret else self._change(lambda users: None)

    def list(self) -> dict[str, dict[str, int]]:
        """Return the user names, sorted, with the iterations of each mechanism."""
        return {
            name: {mechanism: each.iterations for mechanism, each in sorted(credentials.items())}
            for name, credentials in sorted(self.read().users.items())
        }

    def put(self, name: str, salted: Sequence[Salted]) -> None:
        """Add a user or replace its credentials. Mechanisms that are not given are removed."""
        check_name(name)
        for each in salted:
            check_salted(each)
        made = {each.mechanism.name: _stored(each.credential()) for each in salted}

        def edit(users: dict[str, Any]) -> None:
            users[name] = made

        self._change(edit)

    def delete(self, name: str) -> None:
        """Delete a user. Existing connections stay open."""

        def edit(users: dict[str, Any]) -> None:
            if users.pop(name, None) is None:
                raise UserNotFound(f"no user {name!r}")

        self._change(edit)

    def alter(self, deletions: Sequence[tuple[str, Mechanism]], upsertions: Sequence[tuple[str, Salted]]) -> set[str]:
        """Change single credentials in one step. Return the users that lack a credential to delete; these are not
        changed at all. The caller has checked everything else."""
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

    def _change(self, edit: Callable[[dict[str, Any]], None]) -> UserSnapshot:
        def edited(fields: Mapping[str, Any]) -> Mapping[str, Any]:
            users = dict(fields.get("users", {}))
            edit(users)
            secret = fields.get("secret") or _text(secrets.token_bytes(_SECRET_BYTES))
            return {"secret": secret, "users": users}

        return _snapshot(self._registry.change(DOCUMENT, edited))


def check_name(name: str) -> None:
    """Raise `InvalidConfig` unless a user can have this name."""
    if not 1 <= len(name) <= _MAX_NAME_LENGTH or not name.isprintable() or name != name.strip():
        raise InvalidConfig(f"a user's name has 1 to {_MAX_NAME_LENGTH} printable characters, and no spaces around it")
    if name == ANONYMOUS_NAME:
        raise InvalidConfig(f"{ANONYMOUS_NAME} is the name of unauthenticated clients")


def check_salted(salted: Salted) -> None:
    """Raise `InvalidConfig` unless the salted password can be stored."""
    if not MIN_ITERATIONS <= salted.iterations <= MAX_ITERATIONS:
        raise InvalidConfig(f"iterations must be from {MIN_ITERATIONS} to {MAX_ITERATIONS}, not {salted.iterations}")
    if not 1 <= len(salted.salt) <= 1024:  # any length within reason, as in Kafka
        raise InvalidConfig(f"a salt has 1 to 1024 bytes, not {len(salted.salt)}")
    if len(salted.password) != salted.mechanism.size_bytes:
        raise InvalidConfig(f"a salted password has {salted.mechanism.size_bytes} bytes, not {len(salted.password)}")


# --- the document


def _snapshot(document: Document) -> UserSnapshot:
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
        return UserSnapshot(document.version, users, _bytes(document.fields.get("secret", "")))
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
    return base64.b64decode(text, validate=True)


#: The visible part of a credential: iterations and salt length.
_Shape = tuple[int, int]
#: The shape of a new user's credential.
_DEFAULT_SHAPE: Final[_Shape] = (MAX_ITERATIONS, SALT_BYTES)


class UserCache:
    """All users as of the last refresh."""

    def __init__(self, snapshot: UserSnapshot) -> None:
        self._current = snapshot
        self._shapes = _shapes(snapshot)

    @property
    def names(self) -> Set[str]:
        return self._current.users.keys()

    def replace(self, snapshot: UserSnapshot) -> None:
        """Replace the snapshot. An older one is ignored: it was read before a change."""
        if snapshot.version > self._current.version:
            self._current, self._shapes = snapshot, _shapes(snapshot)

    def find(self, name: str, mechanism: Mechanism) -> Credential:
        """Return the credential of a user, or one that nothing matches."""
        decoy = self._decoy(name, mechanism)  # computed in both cases, so that both take the same time
        return self._current.users.get(name, {}).get(mechanism.name, decoy)

    def strongest(self, name: str, mechanisms: tuple[Mechanism, ...]) -> tuple[Mechanism, Credential]:
        """Return the first of these mechanisms for which the user has a credential, to check a password against."""
        known = self._current.users.get(name)
        for mechanism in mechanisms:
            if mechanism.name in (self._shapes if known is None else known):
                return mechanism, self.find(name, mechanism)
        return SHA_512, self._decoy(name, SHA_512)

    def _decoy(self, name: str, mechanism: Mechanism) -> Credential:
        def made(what: str) -> bytes:
            return hmac.digest(self._current.secret, f"{what}\0{mechanism.name}\0{name}".encode(), "sha512")

        def score(shape: _Shape) -> float:
            point = int.from_bytes(made(f"shape {shape[0]} {shape[1]}")[:6], "big") + 1
            # Weighted rendezvous hashing: a new shape moves few names, all of them to it.
            return math.log(point / (1 << 48)) / shapes[shape]

        shapes = self._shapes.get(mechanism.name) or {_DEFAULT_SHAPE: 1}
        iterations, length = max(sorted(shapes), key=score)
        size = mechanism.size_bytes
        salt = (made("salt") * (length // 64 + 1))[:length]
        return Credential(iterations, salt, made("stored key")[:size], made("server key")[:size])


def _shapes(snapshot: UserSnapshot) -> dict[str, Counter[_Shape]]:
    """Count the users of each mechanism by shape."""
    counts: dict[str, Counter[_Shape]] = {}
    for credentials in snapshot.users.values():
        for mechanism, each in credentials.items():
            counts.setdefault(mechanism, Counter())[each.iterations, len(each.salt)] += 1
    return counts
