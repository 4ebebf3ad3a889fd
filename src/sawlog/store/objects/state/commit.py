"""`Commit`: one numbered object with a list of requests, in the order in which they apply, and their batches; `Extent`:
where batches are stored.

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

An *extent* (`Extent`) is a run of batches in one object: in a commit, in an upload or in a consolidated segment. Its
batches have consecutive offsets from its base; the offsets in their stored headers do not count.

A key and a position do not identify bytes: after a bucket is copied or rolled back, the same commit number holds other
records. So each extent records the digest of its batches (`content_digest`). Caches use it as part of the
key, and every read from the bucket verifies it.

A partition on object storage has a single leader epoch, 0, because nothing is ever truncated. In a directory, records
may have been truncated, and each truncation begins a new epoch, which is recorded in the batch headers and in committed
offsets. A copy of such a partition keeps the epochs, as [[epoch, its first offset], ...], so that it has the same bytes
and cannot be mistaken for a copy of something else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from ....batch.checksum import crc32c
from ....batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
    COMMIT_MARKER,
    CONTROL_BIT,
    COUNT,
    CRC,
    LAST,
    LEADER_EPOCH,
    MARKER,
    MARKER_MASK,
    MAX_TIME,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
    TRANSACTIONAL_BIT,
    Rows,
)
from ....errors import CorruptData, SawlogError
from ..bucket import Bucket

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
        data = sealed(TOMBSTONE, canonical({"nonce": [self.nonce.writer, self.nonce.sequence]}))
        assert len(data) <= TOMBSTONE_BYTES
        return data


def is_tombstone(data: bytes) -> bool:
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


def read_commit(bucket: Bucket, key: str) -> tuple[Commit, int] | None:
    """Return a commit and the position of its batches; None if it is missing or a tombstone."""
    data = bucket.get(key)
    with suppress(Collected):
        return None if data is None else verified_commit(bucket, key, data)[1]
    return None


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


# --- extents

#: The key of batches that are in the commit itself.
INLINE = ""
#: Prefixes of uploads: staged batches, and consolidated ones. After the last / follows `<commits known>-...`.
STAGED, SEGMENTS = "staged/", "segments/"
#: Length of `Extent.digest`.
DIGEST_DIGITS = 16


class Extent(NamedTuple):
    """Consecutive batches in one object."""

    base_offset: int
    next_offset: int
    key: str
    position: int
    size_bytes: int
    max_timestamp: int
    #: `content_digest` of the batches, as recorded by the commit that placed them.
    digest: str
    #: Nonzero only in a copy of a partition that is stored elsewhere.
    leader_epoch: int = 0


def in_runs(
    extents: Iterable[Extent], max_bytes: int | None = None, follows: Callable[[Extent, Extent], bool] | None = None
) -> Iterator[list[Extent]]:
    """Group consecutive extents, up to a size but at least one. `follows` tells whether the second of two extents may
    be in the run of the first."""
    most = sys.maxsize if max_bytes is None else max_bytes
    run: list[Extent] = []
    size = 0
    for each in extents:
        if run and (size + each.size_bytes > most or (follows is not None and not follows(run[-1], each))):
            yield run
            run, size = [], 0
        run.append(each)
        size += each.size_bytes
    if run:
        yield run


def begun_at(key: str) -> int | None:
    """Return the number of commits known when an upload began; None for the key of another object."""
    number = key.rpartition("/")[2].partition("-")[0]
    return int(number) if key.startswith((STAGED, SEGMENTS)) and number.isdecimal() else None


def job_of(key: str) -> str | None:
    """Return the job whose task staged an object, or None."""
    parts = key.rpartition("/")[2].split("-", 1)[-1].rpartition("-")
    return parts[0] or None if key.startswith(STAGED) else None


#: The document that marks a store as a copy of another; `source` is the id of the original.
COPY_OF = "copy-of"
#: Maximum in Kafka's batch header.
_MAX_EPOCH = 2**31 - 1


def epoch_of(epochs: Sequence[Sequence[int]], offset: int) -> int:
    """Return the epoch that an offset belongs to."""
    for epoch, first in reversed(epochs):
        if first <= offset:
            return int(epoch)
    return 0


def with_epoch(epochs: Sequence[Sequence[int]], epoch: int, offset: int) -> list[list[int]]:
    """Return the epochs after a new one begins at the end of the partition. Epochs without records are dropped. Raises
    `ValueError` if the new epoch is not greater."""
    kept = [[number, first] for number, first in epochs if first < offset]
    if type(epoch) is not int or not (kept[-1][0] if kept else -1) < epoch <= _MAX_EPOCH:
        raise ValueError(f"epoch {epoch} does not follow")
    return [*kept, [epoch, offset]]


def epoch_end(epochs: Sequence[Sequence[int]], epoch: int, end: int) -> int:
    """Return the first offset after an epoch; the end of the partition for the last epoch and for an unknown one."""
    if epoch < 0:
        return end
    return min((int(first) for number, first in epochs if number > epoch), default=end)


# --- how a commit describes batches

#: Maximum size of an extent: the unit that is read to find a batch in it.
EXTENT_BYTES = 1 << 20
#: Roles of a batch in a transaction: records, or the marker that ends it.
RECORDS, MARKED_COMMIT, MARKED_ABORT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class BatchDescription:
    """The description of batches in a commit."""

    #: [position, bytes, offsets, largest timestamp, digest] of each extent, in order.
    extents: list[list[Any]]
    #: [producer id, epoch, first sequence, last sequence, offsets before it] of each idempotent batch.
    producers: list[list[int]]
    #: [producer id, epoch, first, last, kind] of each transactional batch: see partitions.py.
    transactions: list[list[int]]
    #: Number of offsets that the batches take.
    count: int


def described(rows: Rows, extent_bytes: int = EXTENT_BYTES) -> BatchDescription:
    extents: list[list[Any]] = []
    producers: list[list[int]] = []
    transactions: list[list[int]] = []
    starts: list[int] = []
    count, leader_epoch = 0, None
    for number, row in enumerate(rows):
        position, size, newest = int(row[POSITION]), int(row[SIZE]), int(row[MAX_TIME])
        offsets = int(row[LAST]) - int(row[BASE]) + 1
        last = extents[-1] if extents and row[LEADER_EPOCH] == leader_epoch else None  # one epoch each
        leader_epoch = row[LEADER_EPOCH]
        if last is not None and last[0] + last[1] == position and last[1] + size <= extent_bytes:
            extents[-1] = [last[0], last[1] + size, last[2] + offsets, max(last[3], newest)]
        else:
            extents.append([position, size, offsets, newest])
            starts.append(number)
        producer, epoch, first = int(row[PRODUCER_ID]), int(row[PRODUCER_EPOCH]), int(row[BASE_SEQUENCE])
        if producer >= 0 and row[ATTRIBUTES] & TRANSACTIONAL_BIT:
            transactions.append([producer, epoch, count, count + offsets - 1, _transaction_kind(row)])
        if producer >= 0 and first >= 0:
            producers.append([producer, epoch, first, (first + offsets - 1) % 2**31, count])
        count += offsets
    for extent, start, end in zip(extents, starts, [*starts[1:], len(rows)], strict=True):
        extent.append(content_digest(rows[start:end]))
    return BatchDescription(extents, producers, transactions, count)


def _transaction_kind(row: Any) -> int:
    if not row[ATTRIBUTES] & CONTROL_BIT:
        return RECORDS
    return MARKED_COMMIT if row[MARKER] & MARKER_MASK == COMMIT_MARKER else MARKED_ABORT


def content_digest(rows: Rows) -> str:
    """Return the identity of batches, wherever they are stored: 64 bits of BLAKE2b, in hexadecimal, over the header
    fields from the record count to the CRC-32C, each as a little-endian i64. Base offset and leader epoch are left out
    because they change when a batch is placed.

    The CRC stands for the records, so the digest of bytes from a bucket proves something only after their CRCs were
    checked.
    """
    fields = rows[:, COUNT : CRC + 1].astype("<i8", copy=False).tobytes()
    return blake2b(fields, digest_size=DIGEST_DIGITS // 2).hexdigest()


def append_action(topic: str, partition: int, key: str, about: BatchDescription, expect: int | None) -> dict[str, Any]:
    action: dict[str, Any] = {
        "do": "append",
        "topic": topic,
        "partition": partition,
        "key": key,
        "extents": about.extents,
    }
    if about.producers:
        action["producers"] = about.producers
    if about.transactions:
        action["transactions"] = about.transactions
    if expect is not None:
        action["expect"] = expect
    return action
