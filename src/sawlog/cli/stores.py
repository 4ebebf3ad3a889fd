"""What commands need of a store, wherever it is: `Store` has it in a directory, `RemoteStore` behind a broker.

A command that takes `-d DIR` or `-b HOST:PORT` uses these protocols only, so it prints the same for both. What a broker
does not tell (a topic's age, paths, segments) is None there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from ..batch.kernel import Record
from ..log.replica_source import Fetched
from ..store.settings import TopicChanges, TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from ..broker.security.acls import Binding, Filter
    from ..broker.security.mechanisms import Salted
    from ..isolation import Isolation

#: A partition: its topic and its number.
Share = tuple[str, int]


class Sink(Protocol):
    """Takes records one by one."""

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Append one record."""


class SomeLog(Protocol):
    """One partition."""

    @property
    def lowest_offset(self) -> int:
        """The first offset."""

    @property
    def next_offset(self) -> int:
        """The offset after the last visible record."""

    @property
    def visible_offset(self) -> int:
        """Every record below this can be read."""

    @property
    def leader_epoch(self) -> int:
        """The epoch that appends belong to."""

    @property
    def segments(self) -> Sequence[object] | None:
        """Its segments; None if they are not known."""

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """The end for readers, and its leader epoch."""

    def epoch_end(self, leader_epoch: int, /) -> int:
        """The first offset after an epoch."""

    def offset_at(self, timestamp: int, /) -> int:
        """The first offset at or after a time."""

    def scan(
        self, start: int | None = None, end: int | None = None, /, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Records in order."""

    def scan_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] = ...,
        isolation: Isolation = "committed",
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches."""

    def fetch(self, start: int, max_bytes: int, /, *, isolation: Isolation = "committed") -> Fetched:
        """Complete batches as they are stored."""

    def append_stream(
        self, chunks: Iterable[bytes], /, *, key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> object:
        """Append one record from pieces."""

    def writer(self, *, linger_ms: float | None = None) -> AbstractContextManager[Sink]:
        """Collect records into batches."""


class PartitionAbout(Protocol):
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


class TopicAbout(Protocol):
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
    def rows(self) -> Sequence[PartitionAbout]: ...


class SomeTopic(Protocol):
    """A topic."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str | None: ...
    @property
    def partitions(self) -> int: ...
    @property
    def settings(self) -> dict[str, int | float | str]: ...

    def describe(self) -> TopicAbout:
        """Its settings, and how much it contains."""

    def partition(self, number: int, /) -> SomeLog:
        """One partition."""

    def writer(self, *, linger_ms: float | None = None) -> AbstractContextManager[Sink]:
        """Collect records into batches, per partition."""

    def partition_writer(self, partition: int, /, *, linger_ms: float | None = None) -> AbstractContextManager[Sink]:
        """The same for one partition."""

    def packer(
        self, compression: str, /, *, partition: int | None = None, linger_ms: float | None = None
    ) -> AbstractContextManager[Sink]:
        """The same with another compression than the topic's."""

    def append_many(self, records: Iterable[Any], /, *, partition: int | None = None) -> object:
        """Append records."""

    def append_arrow(self, table: pa.RecordBatch, /, *, partition: int | None = None) -> object:
        """Append the rows of an Arrow table."""

    def trim(self, offsets: Mapping[int, int], /) -> int:
        """Drop the records below these offsets."""


class GroupRow(Protocol):
    """The progress of a group in one partition."""

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


class GroupAbout(Protocol):
    """Information about a group."""

    @property
    def members(self) -> Sequence[object]: ...
    @property
    def served_at(self) -> str | None: ...
    @property
    def rows(self) -> Sequence[GroupRow]: ...


class SomeGroups(Protocol):
    """The consumer groups."""

    def list(self) -> list[str]:
        """Their names."""

    def describe(self, name: str, /) -> GroupAbout:
        """The members of a group, and its progress."""

    def seek(self, name: str, offsets: dict[Share, int], /) -> object:
        """Move an existing group."""

    def commit(self, name: str, offsets: dict[Share, int], /) -> object:
        """Commit offsets for a group, which may be new."""

    def delete(self, name: str, /) -> None:
        """Delete a group."""


class SomeUsers(Protocol):
    """The users of a broker."""

    def list(self) -> dict[str, dict[str, int]]:
        """Their names, with the iterations of each mechanism."""

    def put(self, name: str, salted: Sequence[Salted], /) -> None:
        """Add a user, or replace its passwords."""

    def delete(self, name: str, /) -> None:
        """Delete a user."""


class SomeStore(Protocol):
    """Topics and groups."""

    @property
    def groups(self) -> SomeGroups: ...

    def __iter__(self) -> Iterator[SomeTopic]:
        """All topics."""

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""

    def topic(self, name: str, /) -> SomeTopic:
        """The topic of that name."""

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> SomeTopic:
        """Create a topic."""

    def alter_topic(self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> SomeTopic:
        """Add partitions or change settings."""

    def delete_topic(self, name: str, /) -> None:
        """Delete a topic."""


class SomeAcls(Protocol):
    """The access control rules of a broker."""

    def find(self, wanted: Filter, /) -> list[Binding]:
        """Those that match, in order."""

    def add(self, bindings: Iterable[Binding], /) -> None:
        """Add rules."""

    def delete(self, filters: Sequence[Filter], /) -> list[list[Binding]]:
        """Delete rules; what each filter matched."""
