"""`Commit`: one numbered object with a list of requests, in the order in which they apply, and their batches.

```
sawlog commit 2
<bytes of the text> <CRC-32C of all that follows this line, in hexadecimal>
{"nonce": ["<writer>", 17], "known": 41, "digest": "<state after the commit before>", "time_ms": ..., "requests": [...]}
<batches>
```

A *request* comes from one caller: a list of actions that are applied together or not at all. A commit holds the
requests of all waiting callers; each has its own outcome.

The nonce identifies the writer, so that a writer that got no answer can recognise its own commit.

An unknown field, anywhere, stops the process (`UpgradeRequired`), because it may change the meaning of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ....batch.checksum import crc32c
from ....errors import CorruptData, SawlogError
from ..bucket.bucket import Bucket

#: The format version that this library reads and writes.
VERSION = 2
COMMIT, TOMBSTONE = b"sawlog commit ", b"sawlog tombstone "
#: No tombstone is larger, and every commit is: a listing tells them apart.
TOMBSTONE_BYTES = 128
_FIELDS = frozenset({"nonce", "known", "digest", "time_ms", "requests"})

#: Number of times to reread an object that fails its checksum before reporting it as damaged.
REREADS = 2
COMMITS = "commits/"

#: An action: `do` is its name, the rest are its parameters.
Action = Mapping[str, Any]
Request = Sequence[Action]


def commit_key(number: int) -> str:
    return f"{COMMITS}{number:020}"


class UpgradeRequired(SawlogError):
    """The store contains data unknown to this version of sawlog: nothing may be read, acknowledged or removed."""


class Collected(Exception):
    """The requested commit is behind a checkpoint, or nothing proves that it is not: restart from the newest
    checkpoint."""


class Unreadable(CorruptData):
    """A commit or checkpoint was damaged on every read. A later read may succeed if the damage happens between the
    bucket and this process."""


@dataclass(frozen=True, slots=True)
class Nonce:
    """The writer of a commit and the commit's number in the writer's own sequence."""

    writer: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The decoded content of a commit."""

    nonce: Nonce
    #: Number of commits that the writer knew when it first tried to create this one. If that is below the floor and the
    #: nonce is unknown, it can no longer be decided whether the commit was applied before.
    known: int
    #: Digest of the state after the previous commit.
    digest: str
    requests: tuple[Request, ...]
    #: Creation time by the writer's clock; for display and retention, never for safety.
    time_ms: int = 0
    #: Batches stored in the commit itself.
    inline: bytes = b""

    def encode(self) -> bytes:
        """Return the content of the object."""
        text = canonical(
            {
                "nonce": [self.nonce.writer, self.nonce.sequence],
                "known": self.known,
                "digest": self.digest,
                "time_ms": self.time_ms,
                "requests": [list(request) for request in self.requests],
            }
        )
        return sealed(COMMIT, text, self.inline)

    @classmethod
    def decode(cls, data: bytes, key: str) -> tuple[Commit, int]:
        """Return the commit and the position of the batches in it."""
        text, start = opened(data, COMMIT, key)
        try:
            unknown = set(text) - _FIELDS
            if unknown:
                raise UpgradeRequired(f"{key} has fields that this version does not know: {', '.join(sorted(unknown))}")
            made = cls(
                Nonce(str(text["nonce"][0]), int(text["nonce"][1])),
                int(text["known"]),
                str(text["digest"]),
                tuple(tuple(request) for request in text["requests"]),
                int(text["time_ms"]),
                data[start:],
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptData(f"{key} is no commit: {error}") from error
        return made, start


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The replacement of a commit that is behind a checkpoint: it records only the nonce."""

    nonce: Nonce

    def encode(self) -> bytes:
        """Return the content of the object."""
        data = sealed(TOMBSTONE, canonical({"nonce": [self.nonce.writer, self.nonce.sequence]}))
        assert len(data) <= TOMBSTONE_BYTES
        return data


def is_tombstone(data: bytes) -> bool:
    """Return whether an object under a commit's key is a tombstone."""
    return data.startswith(TOMBSTONE)


def verified_commit(bucket: Bucket, key: str, data: bytes) -> tuple[bytes, tuple[Commit, int]]:
    """Return the bytes of a commit and the decoded commit. A damaged commit is read again, because a bit may have
    flipped in transit. Raises `Collected` if it is a tombstone or was removed in the meantime."""
    for _ in range(REREADS):
        if is_tombstone(data):
            raise Collected(f"{key} is collected")
        with suppress(CorruptData, UpgradeRequired):
            return data, Commit.decode(data, key)
        again = bucket.get(key)
        if again is None:
            raise Collected(f"{key} is gone")
        data = again
    try:
        return data, Commit.decode(data, key)
    except CorruptData as error:
        raise Unreadable(str(error)) from error


#: Created once: a state has a hundred thousand entries, and each is encoded for its digest.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical(value: Any) -> bytes:
    """Encode a value as canonical JSON, the form that all processes compute digests from."""
    return _ENCODER.encode(value).encode()


def sealed(magic: bytes, text: bytes, rest: bytes = b"") -> bytes:
    """Return an object: magic and version, checksum, text, and the bytes that follow."""
    body = text + b"\n" + rest
    return magic + b"%d\n%d %08x\n" % (VERSION, len(text), crc32c(body)) + body


def opened(data: bytes, magic: bytes, key: str) -> tuple[Any, int]:
    """Verify an object made by `sealed`, and return its text and the position after it."""
    first, newline, rest = data.partition(b"\n")
    if not newline or not first.startswith(magic):
        raise CorruptData(f"{key} is not what its name says: it begins with {data[:24]!r}")
    if first[len(magic) :] != b"%d" % VERSION:
        raise UpgradeRequired(
            f"{key} has version {first[len(magic) :].decode(errors='replace')}; this one is {VERSION}"
        )
    sizes, newline, body = rest.partition(b"\n")
    try:
        size_text, crc_text = sizes.split(b" ")
        size, crc = int(size_text), int(crc_text, 16)
        if crc32c(body) != crc:
            raise ValueError("its checksum does not match")
        return json.loads(body[:size]), len(data) - len(body) + size + 1
    except ValueError as error:
        raise CorruptData(f"{key}: {error}") from error
