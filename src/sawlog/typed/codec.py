"""`TypedRecord`: a record whose value, key and metadata are objects; `Codec`: encodes and decodes records through the
serializers of a view; `BadRecords`: handles records that fail.

Decoding has two paths, because most records parse: `decode_many` runs each serializer over a whole column, and raises
without naming the record; `decode` takes one record and raises `DecodeFailed`.

A record that does not parse is raised, or copied to a topic or log chosen for the purpose. The copy has the key, the
value, the timestamp and the headers of the record, and five more headers:

```
sawlog.error.topic       where it was read; missing if it was read from a log that is not part of a topic
sawlog.error.partition
sawlog.error.offset
sawlog.error.part        the part that does not parse: "value", "key" or "metadata"
sawlog.error.reason      why
```

It is appended before the next record is returned, so a consumer never commits past a record whose copy is missing. A
record that is read again is copied again.

Thread-safe, if the serializers are.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..batch.kernel import Record
from ..errors import DecodeFailed, InvalidConfig, InvalidRecord, SawlogError
from ..store.base import Partition, Topic
from .serializers import JSON, Bytes, MetadataSerializer, Nullable, RawHeaders, Serializer, Unchanged, Utf8

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


#: Source of the field getters, which are C: a property takes three times as long.
_Fields = namedtuple("_Fields", ["value", "record"])
_Fields.value.__doc__ = "The value."
_Fields.record.__doc__ = "The record as it is stored."


class TypedRecord(tuple[Any, ...], Generic[V, K, M]):
    """A record read through a view: `value`, `key`, `metadata`, and its position. `record` is the same record with its
    bytes.

    It is a tuple built in C: (value, record), or (value, record, key, metadata) if the view has serializers for the
    last two. Creating an instance of a Python class for each record would take as long as parsing it.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def value(self) -> V: ...

        @property
        def record(self) -> Record: ...

    else:
        value, record = _Fields.value, _Fields.record

    @property
    def key(self) -> K | None:
        """The key; None if the record has none."""
        found: K | None = self[2] if len(self) > 2 else self[1].key
        return found

    @property
    def metadata(self) -> M:
        """The decoded headers; the raw headers if the view declares no metadata."""
        found: M = self[3] if len(self) > 2 else self[1].headers
        return found

    @property
    def topic(self) -> str | None:
        """The topic it was read from; None for a log that is not part of a topic."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The partition it was read from; -1 for a log that is not part of a topic."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """Offset in the partition."""
        return self.record.offset

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 if it has none."""
        return self.record.timestamp

    @property
    def headers(self) -> RawHeaders:
        """All headers, undecoded."""
        return self.record.headers

    def __repr__(self) -> str:
        place = "" if self.topic is None else f"topic={self.topic!r}, partition={self.partition}, "
        metadata = f", metadata={self.metadata!r}" if self.headers else ""
        return f"TypedRecord({place}offset={self.offset}, key={self.key!r}, value={self.value!r}{metadata})"


_PREFIX = "sawlog.error."
#: Maximum size of a stored reason: a serializer may quote the whole value.
_MOST_REASON_BYTES = 1000


class BadRecords:
    """The destination of records that do not parse."""

    def __init__(self, sink: Callable[[], Topic | Partition] | None = None) -> None:
        #: Called for the first bad record: the topic may not exist before.
        self._find = sink
        self._sink: Topic | Partition | None = None

    def take(self, error: DecodeFailed) -> None:
        """Copy the record of the error to the destination; without one, raise the error."""
        if self._find is None:
            raise error
        if self._sink is None:
            self._sink = self._find()
        record: Record = error.record
        timestamp = None if record.timestamp < 0 else record.timestamp
        self._sink.append(record.value, record.key, (*record.headers, *_headers(error)), timestamp)


def _headers(error: DecodeFailed) -> list[tuple[str, bytes]]:
    record = error.record
    place = [] if record.topic is None else [("topic", str(record.topic)), ("partition", str(record.partition))]
    reason = error.reason.encode(errors="replace")[:_MOST_REASON_BYTES].decode(errors="ignore")
    fields = [*place, ("offset", str(record.offset)), ("part", error.part), ("reason", reason)]
    return [(_PREFIX + name, text.encode()) for name, text in fields]


class Codec(Generic[V, K, M]):
    """The serializers of a view."""

    def __init__(self, value: Serializer[V], key: Serializer[K], metadata: MetadataSerializer[M]) -> None:
        for part, each in (("value", value), ("key", key), ("metadata", metadata)):
            if isinstance(each, type) or not all(callable(getattr(each, name, None)) for name in ("encode", "decode")):
                raise InvalidConfig(f"{part} must be a serializer, such as Utf8() or JSON(Order), not {each!r}")
        self._value, self._key, self._metadata = value, key, metadata
        self._nullable = isinstance(value, Nullable)
        #: The serializer itself rejects or accepts a missing value.
        self._sees_none = isinstance(value, (Nullable, JSON, Utf8))
        #: Headers stay as they are; `_plain`: keys as well.
        self._raw_headers = isinstance(metadata, Unchanged)
        self._plain = self._raw_headers and isinstance(key, Bytes)

    def __repr__(self) -> str:
        return f"value={self._value!r}, key={self._key!r}, metadata={self._metadata!r}"

    # --- writing

    def encode(self, value: V, key: K | None, metadata: M | None) -> tuple[bytes | None, bytes | None, RawHeaders]:
        """Return value, key and headers of a record. Raises `InvalidRecord` if one of them cannot be encoded."""
        return (
            self._encoded("value", self._value.encode, value),
            None if key is None else self._encoded("key", self._key.encode, key),
            () if metadata is None and self._raw_headers else self._headers(metadata),
        )

    def _headers(self, metadata: M | None) -> RawHeaders:
        given = self._encoded("metadata", lambda _: self._metadata.empty(), None) if metadata is None else metadata
        found: RawHeaders = self._encoded("metadata", self._metadata.encode, given)
        return found

    @staticmethod
    def _encoded(part: str, encode: Any, what: Any) -> Any:
        try:
            return encode(what)
        except SawlogError:
            raise
        except Exception as error:  # a serializer may raise anything
            raise InvalidRecord(f"the {part} cannot be encoded: {str(error) or type(error).__name__}") from error

    # --- reading

    def decode(self, record: Record) -> TypedRecord[V, K, M]:
        """Decode one record. Raises `DecodeFailed`, with the record, if a part of it does not parse."""
        value = self._decoded(record, "value", self._value.decode, record.value, none_ok=self._nullable)
        if self._plain:
            return TypedRecord((value, record))
        key = None if record.key is None else self._decoded(record, "key", self._key.decode, record.key)
        metadata = self._decoded(record, "metadata", self._metadata.decode, record.headers)
        return TypedRecord((value, record, key, metadata))

    @staticmethod
    def _decoded(record: Record, part: str, decode: Any, data: Any, *, none_ok: bool = False) -> Any:
        try:
            if data is None and not none_ok:
                raise ValueError("there is none (a tombstone); Nullable(...) accepts that")
            return decode(data)
        except Exception as error:  # a serializer may raise anything
            raise DecodeFailed(part, str(error) or type(error).__name__, record) from error

    def decode_many(self, records: Sequence[Record]) -> Iterator[TypedRecord[V, K, M]]:
        """Decode many records. Raises any exception if one of them does not parse."""
        data: list[Any] = [record.value for record in records]
        if not self._sees_none and None in data:
            raise ValueError("a record has no value")
        values = map(self._value.decode, data)
        columns: Iterator[tuple[Any, ...]]
        if self._plain:
            columns = zip(values, records)  # noqa: B905 - equal lengths; strict costs time
        else:
            decode_key, decode_headers = self._key.decode, self._metadata.decode
            keys = [None if record.key is None else decode_key(record.key) for record in records]
            metadata = [decode_headers(record.headers) for record in records]
            columns = zip(values, records, keys, metadata, strict=True)
        made: list[TypedRecord[V, K, M]] = list(map(TypedRecord, columns))
        return iter(made)
