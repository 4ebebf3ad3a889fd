"""`TypedRecord`: a record whose value, key and metadata are objects.

It is a tuple built in C: (value, record), or (value, record, key, metadata) if the view has serializers for the last
two. Creating an instance of a Python class for each record would take as long as parsing it.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..batch.kernel import Record
from .serializers import RawHeaders

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


#: Source of the field getters, which are C: a property takes three times as long.
_Fields = namedtuple("_Fields", ["value", "record"])
_Fields.value.__doc__ = "The value."
_Fields.record.__doc__ = "The record as it is stored."


class TypedRecord(tuple[Any, ...], Generic[V, K, M]):
    """A record read through a view: `value`, `key`, `metadata`, and its position. `record` is the same record with its
    bytes."""

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
        """Offset of the record."""
        return self.record.offset

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 if it has none."""
        return self.record.timestamp

    @property
    def headers(self) -> RawHeaders:
        """All headers, as they are stored."""
        return self.record.headers

    def __repr__(self) -> str:
        place = "" if self.topic is None else f"topic={self.topic!r}, partition={self.partition}, "
        metadata = f", metadata={self.metadata!r}" if self.headers else ""
        return f"TypedRecord({place}offset={self.offset}, key={self.key!r}, value={self.value!r}{metadata})"
