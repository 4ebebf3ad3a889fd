"""`Intent`: the partition, and the offset if known, for each staged batch of a transaction; with its encoding.

```
{
  "id": "0b5c...",
  ...
  "crc32c": "1c291ca3"
}
batches, contiguous: those that are not in a staged file
```

A JSON document that any tool can read (`sawlog.storage.checksummed`), followed by the batches that are not in a staged
file; `data_crc32c` is their checksum. A named transaction leaves the document alone, without batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....batch.checksum import crc32c
from ....display import time_text
from ....errors import CorruptFile, InvalidConfig, ReplayMismatch
from ....storage import checksummed
from ...names import is_text, quoted

#: Suffix of an intent's file.
INTENT = ".intent"
#: End of a document: each of its fields is on a line of its own.
_END = b"\n}\n"
#: Digests are sums modulo this.
DIGESTS = 1 << 64
#: An error names at most this many topics, and partitions of each.
_MOST_SHOWN = 8
#: A quoted name must leave space for a suffix in a file name.
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Piece:
    """Complete batches in a staged file, or, without a file name, in the intent."""

    file: str
    position: int
    size_bytes: int
    #: Number of their offsets if the file contains nothing else, otherwise 0.
    count: int = 0

    def fields(self) -> list[str | int]:
        """Return the JSON form. A count of 0 is left out."""
        known: list[str | int] = [self.file, self.position, self.size_bytes]
        return [*known, self.count] if self.count else known

    def joined(self, after: Piece) -> Piece:
        """Return this piece merged with the one that follows it in the same file."""
        return replace(self, size_bytes=self.size_bytes + after.size_bytes)


@dataclass(frozen=True, slots=True)
class Part:
    """Batches for one partition: `count` offsets starting at `offset`, which is -1 before the commit."""

    topic: str
    topic_id: str
    partition: int
    count: int
    pieces: tuple[Piece, ...]
    offset: int = -1
    #: Sum of the hashes of its records modulo 2**64, so that their order does not matter; 0 if it was not computed.
    digest: int = 0

    @property
    def offsets(self) -> range:
        """Offsets of the records."""
        return range(self.offset, self.offset + self.count)

    @property
    def order(self) -> tuple[str, int]:
        """Sort key: all processes take locks in this order."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Intent:
    """A committed transaction."""

    id: str
    parts: tuple[Part, ...]
    name: str | None = None
    sequence: int | None = None
    #: Batches that are not in a file.
    data: bytes = b""
    #: Time of the commit; 0 before it.
    at_ms: int = 0

    @property
    def file(self) -> str:
        """Name of the intent's file."""
        return f"{self.id}{INTENT}"

    def at(self, offsets: Sequence[int]) -> Intent:
        """Return a copy whose parts begin at these offsets."""
        parts = (replace(part, offset=offset) for part, offset in zip(self.parts, offsets, strict=True))
        return replace(self, parts=tuple(parts))

    @property
    def offsets(self) -> dict[tuple[str, int], range]:
        """Offsets of the records by topic and partition."""
        return {part.order: part.offsets for part in self.parts}

    def encode(self) -> bytes:
        """Return the content of the file."""
        return checksummed.encode(self.fields()) + self.data

    @classmethod
    def decode(cls, data: bytes, path: str, *, is_note: bool = False) -> Intent:
        """Parse the content of a file; `CorruptFile` if it is invalid. For a note, the batches are ignored."""
        end = end_of_document(data)
        fields = checksummed.decode(data[:end], path)
        return cls.from_fields(fields, path, None if is_note else data[end:])

    def fields(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "id": self.id,
            "name": self.name,
            "sequence": self.sequence,
            "parts": [
                {
                    "topic": part.topic,
                    "topic_id": part.topic_id,
                    "partition": part.partition,
                    "offset": part.offset,
                    "count": part.count,
                    "pieces": [piece.fields() for piece in part.pieces],
                    "digest": f"{part.digest:016x}",
                }
                for part in self.parts
            ],
            "at_ms": self.at_ms,
            "data_bytes": len(self.data),
            "data_crc32c": f"{crc32c(self.data):08x}",
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any], path: str, data: bytes | None = b"") -> Intent:
        """Build an intent from a document and the batches it describes; None if they are no longer needed."""
        try:
            parts = tuple(
                Part(
                    str(each["topic"]),
                    str(each["topic_id"]),
                    _count(each["partition"]),
                    _count(each["count"]),
                    tuple(Piece(_file(file), *map(_count, numbers)) for file, *numbers in each["pieces"]),
                    _count(each["offset"]),
                    int(each.get("digest", "0"), 16),
                )
                for each in fields["parts"]
            )
            check_name(fields["name"], fields["sequence"])
            return cls(
                _file(fields["id"]),
                parts,
                fields["name"],
                fields["sequence"],
                b"" if data is None else _checked(fields, data),
                _count(fields["at_ms"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"{path} is not an intent: {error}") from error


def merged(parts: Iterable[Part]) -> list[Part]:
    """Return one part per partition, in lock order. Pieces of the same partition keep their order."""
    found: dict[tuple[str, int], Part] = {}
    for part in parts:
        before = found.get(part.order)
        if before is not None:
            part = replace(  # noqa: PLW2901
                before,
                count=before.count + part.count,
                pieces=before.pieces + part.pieces,
                digest=(before.digest + part.digest) % DIGESTS,
            )
        found[part.order] = part
    return [found[order] for order in sorted(found)]


def records_by_topic(parts: Iterable[Part]) -> dict[str, int]:
    """Return the number of records per topic id. Partitions do not matter: a record without a key may go to any."""
    found: dict[str, int] = {}
    for part in parts:
        if part.count:
            found[part.topic_id] = found.get(part.topic_id, 0) + part.count
    return found


def check_replay(stored: Intent, sequence: int | None, parts: Sequence[Part]) -> None:
    """Raise `ReplayMismatch` if the last sequence is committed again with a different number of records for a topic.
    The records of earlier sequences are unknown."""
    if not stored.id or stored.sequence != sequence or records_by_topic(stored.parts) == records_by_topic(parts):
        return
    raise ReplayMismatch(
        f"{stored.name!r} {sequence} is already stored, with different records. {stored_and_now(stored, parts)} "
        "The records given now were not stored: commit them with a higher sequence, or under another name"
    )


def stored_and_now(stored: Intent, parts: Sequence[Part]) -> str:
    """Describe both sides of a replay, for an error."""
    moment = f" ({time_text(stored.at_ms)})" if stored.at_ms else ""
    return f"Stored{moment}: {_described(stored.parts)}. Now: {_described(parts)}."


def _described(parts: Sequence[Part]) -> str:
    """Describe the parts: '5 records in 'orders' (partition 0: 3 at offset 7, partition 1: 2 at offset 0)'."""
    by_topic: dict[tuple[str, str], list[Part]] = {}
    for part in merged(parts):
        by_topic.setdefault((part.topic, part.topic_id), []).append(part)
    said = []
    for (topic, _), each in sorted(by_topic.items())[:_MOST_SHOWN]:
        places = [
            f"partition {part.partition}: {part.count:,}" + (f" at offset {part.offset:,}" if part.offset >= 0 else "")
            for part in each[:_MOST_SHOWN]
        ]
        more = f" and {len(each) - _MOST_SHOWN:,} more partitions" if len(each) > _MOST_SHOWN else ""
        total = sum(part.count for part in each)
        said.append(f"{total:,} record{'s' * (total != 1)} in {topic!r} ({', '.join(places)}{more})")
    if len(by_topic) > _MOST_SHOWN:
        said.append(f"{len(by_topic) - _MOST_SHOWN:,} more topics")
    return ", ".join(said) or "no records"


def _checked(fields: dict[str, Any], data: bytes) -> bytes:
    """Return the inline batches; `ValueError` unless they are the ones that were committed."""
    if (len(data), f"{crc32c(data):08x}") != (fields["data_bytes"], fields["data_crc32c"]):
        raise ValueError("its batches differ from the committed ones")
    return data


def end_of_document(data: bytes) -> int:
    """Return the position where the document at the start of a file ends."""
    found = data.find(_END)
    return len(data) if found < 0 else found + len(_END)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not an integer, at least 0")
    return value


def _file(value: object) -> str:
    """Return a file name in `staging/`; it must not lead anywhere else."""
    if not isinstance(value, str) or "/" in value or "\0" in value:
        raise ValueError(f"{value!r} is not the name of a file")
    return value


def check_name(name: str | None, sequence: int | None) -> None:
    """Raise unless a transaction has both a name and a sequence, or neither."""
    if (name is None) != (sequence is None):
        raise InvalidConfig("a transaction needs both a name and a sequence, or neither")
    if name is not None and (
        not isinstance(name, str) or not is_text(name) or not 0 < len(quoted(name)) <= _LONGEST_NAME
    ):
        raise InvalidConfig(f"a transaction's name must be a str of 1 to {_LONGEST_NAME} characters, not {name!r}")
    if sequence is not None and (isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 0):
        raise InvalidConfig(f"a transaction's sequence must be an integer, at least 0, not {sequence!r}")
