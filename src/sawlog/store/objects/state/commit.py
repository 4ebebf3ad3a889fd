"""`Commit`: one numbered object. What it says, in the order in which it is applied, and the batches that are in it.

```
sawlog commit 2
<bytes of the text> <CRC-32C of all that follows this line, in hexadecimal>
{"nonce": ["<writer>", 17], "known": 41, "digest": "<state after the commit before>", "time_ms": ..., "requests": [...]}
<batches>
```

A *request* is what one caller asked for: a list of actions that are applied together or not at all. A commit holds the
requests of all who waited; each has its own outcome.

The nonce says who made the commit, so that a writer that got no answer can see whether a commit is its own.

A field that this version does not know, anywhere, is a reason to stop (`UpgradeRequired`): it may change what the rest
means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....batch.checksum import crc32c
from ....errors import CorruptData, SawlogError

#: What this version of the library understands.
VERSION = 2
COMMIT, TOMBSTONE = b"sawlog commit ", b"sawlog tombstone "
#: No tombstone is larger, and every commit is: a listing shows which is which.
TOMBSTONE_BYTES = 128
_FIELDS = frozenset({"nonce", "known", "digest", "time_ms", "requests"})

#: An action: `do` says which, the rest is its parameters.
Action = Mapping[str, Any]
Request = Sequence[Action]


class UpgradeRequired(SawlogError):
    """The store contains what this version of sawlog does not know: nothing may be read, acknowledged or removed."""


@dataclass(frozen=True, slots=True)
class Nonce:
    """Who made a commit, and which of its commits it is."""

    writer: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says."""

    nonce: Nonce
    #: How many commits its writer knew when it first tried to make it: if that is below the floor, and the nonce is not
    #: known, nobody knows any more whether it was applied before.
    known: int
    #: The digest of the state after the commit before this one.
    digest: str
    requests: tuple[Request, ...]
    #: When it was made, by its writer's clock; for people and for retention, never for safety.
    time_ms: int = 0
    #: Batches that are in the commit itself.
    inline: bytes = b""

    def encode(self) -> bytes:
        """The object."""
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
        """A commit, and where the batches in it begin."""
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
    """What stands in the place of a commit that is behind a checkpoint: only whose it was."""

    nonce: Nonce

    def encode(self) -> bytes:
        """The object."""
        data = sealed(TOMBSTONE, canonical({"nonce": [self.nonce.writer, self.nonce.sequence]}))
        assert len(data) <= TOMBSTONE_BYTES
        return data


def is_tombstone(data: bytes) -> bool:
    """Whether an object in the place of a commit is what is left of it."""
    return data.startswith(TOMBSTONE)


#: Made once: a state has a hundred thousand entries, and each is encoded for its digest.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical(value: Any) -> bytes:
    """JSON in the one form that all processes make of a value: digests are taken of it."""
    return _ENCODER.encode(value).encode()


def sealed(magic: bytes, text: bytes, rest: bytes = b"") -> bytes:
    """An object: what it is, its version, a checksum, a text, and what follows it."""
    body = text + b"\n" + rest
    return magic + b"%d\n%d %08x\n" % (VERSION, len(text), crc32c(body)) + body


def opened(data: bytes, magic: bytes, key: str) -> tuple[Any, int]:
    """The text of such an object, and where it ends."""
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
