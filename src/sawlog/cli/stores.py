"""The interface that commands use, whether the store is opened directly (`Store`) or through a broker (`RemoteStore`).

A command that takes `-d DIR` or `-b HOST:PORT` uses only these protocols, so it prints the same for both. Values that
a broker does not report (a topic's creation time, paths, segments) are None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from ..batch.kernel import Record
from ..log.reader import Fetched
from ..store.settings import TopicChanges, TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from ..broker.security.acls import Binding, Filter
    from ..broker.security.mechanisms import Salted
    from ..isolation import Isolation

#: Topic name and partition number.
TopicPartition = tuple[str, int]


class Sink(Protocol):
    """A destination for single records."""

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Append one record."""


class PartitionLike(Protocol):
    """A partition of a store or of a broker."""

    @property
    def lowest_offset(self) -> int:
        """First offset of the partition."""

    @property
    def next_offset(self) -> int:
        """Offset after the last visible record."""

    @property
    def visible_offset(self) -> int:
        """Offset below which every record is visible."""

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of new records."""

    @property
    def segments(self) -> Sequence[object] | None:
        """The segments, or None if they are unknown."""

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """Return the end offset for readers, and its leader epoch."""

    def epoch_end(self, leader_epoch: int, /) -> int:
        """Return the first offset after an epoch."""

    def offset_at(self, timestamp: int, /) -> int:
        """Return the first offset at or after a time."""

    def scan(
        self, start: int | None = None, end: int | None = None, /, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Yield the records in order."""

    def scan_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] = ...,
        isolation: Isolation = "committed",
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow batches."""

    def fetch(self, start: int, max_bytes: int, /, *, isolation: Isolation = "committed") -> Fetched:
        """Return complete batches as they are stored."""

    def append_stream(
        self, chunks: Iterable[bytes], /, *, key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> object:
        """Append one record from chunks of its value."""

    def writer(self, *, linger_ms: float | None = None) -> AbstractContextManager[Sink]:
        """Return a writer that collects records into batches."""


class PartitionSummary(Protocol):
    """Information about one partition."""

    @property
    def partition(self) -> int: ...
    @property
    def lowest_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def size_bytes(self) -> int | None: ...
    @property
    def segments(self) -> int | None: ...
    @property
    def path(self) -> str | None: ...


class TopicSummary(Protocol):
    """Information about a topic."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str | None: ...
    @property
    def partitions(self) -> int: ...
    @property
    def settings(self) -> dict[str, int | float | str]: ...
    @property
    def created_ms(self) -> int | None: ...
    @property
    def records(self) -> int: ...
    @property
    def size_bytes(self) -> int | None: ...
    @property
    def rows(self) -> Sequence[PartitionSummary]: ...


class TopicLike(Protocol):
    """A topic of a store or of a broker."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str | None: ...
    @property
    def partitions(self) -> int: ...
    @property
    def settings(self) -> dict[str, int | float | str]: ...

    def describe(self) -> TopicSummary:
        """Return the settings and sizes."""

    def partition(self, number: int, /) -> PartitionLike:
        """Return one partition."""

    def writer(self, *, linger_ms: float | None = None) -> AbstractContextManager[Sink]:
        """Return a writer that collects records into batches, per partition."""

    def partition_writer(self, partition: int, /, *, linger_ms: float | None = None) -> AbstractContextManager[Sink]:
        """Return a writer to one partition."""

    def packer(
        self, compression: str, /, *, partition: int | None = None, linger_ms: float | None = None
    ) -> AbstractContextManager[Sink]:
        """Return a writer with a compression other than the topic's."""

    def append_many(self, records: Iterable[Any], /, *, partition: int | None = None) -> object:
        """Append records."""

    def append_arrow(self, table: pa.RecordBatch, /, *, partition: int | None = None) -> object:
        """Append the rows of an Arrow table."""

    def trim(self, offsets: Mapping[int, int], /) -> int:
        """Drop the records below these offsets."""


class GroupRow(Protocol):
    """Progress of a group in one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def committed(self) -> int | None: ...
    @property
    def lowest(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def lag(self) -> int: ...
    @property
    def owner(self) -> str | None: ...


class GroupProgress(Protocol):
    """Members of a group and its progress in each partition."""

    @property
    def members(self) -> Sequence[object]: ...
    @property
    def served_at(self) -> str | None: ...
    @property
    def rows(self) -> Sequence[GroupRow]: ...


class GroupsLike(Protocol):
    """The consumer groups."""

    def list(self) -> list[str]:
        """Return the names of all groups."""

    def describe(self, name: str, /) -> GroupProgress:
        """Return the members of a group and its progress."""

    def seek(self, name: str, offsets: dict[TopicPartition, int], /) -> object:
        """Move an existing group."""

    def commit(self, name: str, offsets: dict[TopicPartition, int], /) -> object:
        """Commit offsets for a group, which may be new."""

    def delete(self, name: str, /) -> None:
        """Delete a group."""


class UsersLike(Protocol):
    """The users of a broker."""

    def list(self) -> dict[str, dict[str, int]]:
        """Return the user names, with the iterations of each mechanism."""

    def put(self, name: str, salted: Sequence[Salted], /) -> None:
        """Add a user, or replace a user's password."""

    def delete(self, name: str, /) -> None:
        """Delete a user."""


class StoreLike(Protocol):
    """Topics and groups of a store or of a broker."""

    @property
    def groups(self) -> GroupsLike: ...

    def __iter__(self) -> Iterator[TopicLike]:
        """Iterate over all topics."""

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""

    def topic(self, name: str, /) -> TopicLike:
        """Return the topic with that name."""

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> TopicLike:
        """Create a topic."""

    def alter_topic(self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> TopicLike:
        """Add partitions or change settings."""

    def delete_topic(self, name: str, /) -> None:
        """Delete a topic."""


class AclsLike(Protocol):
    """The access control rules of a broker."""

    def find(self, wanted: Filter, /) -> list[Binding]:
        """Return the matching rules, in order."""

    def add(self, bindings: Iterable[Binding], /) -> None:
        """Add rules."""

    def delete(self, filters: Sequence[Filter], /) -> list[list[Binding]]:
        """Delete the matching rules; return the rules that each filter matched."""
