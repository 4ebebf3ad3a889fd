"""What a view needs of the topic, log, consumer or store below it: protocols, so that those may use this package.

`Log`, `Topic`, `Consumer` and `Store` implement them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Literal, Protocol, TypedDict

from ..batch.given import GivenHeaders, GivenRecord
from ..batch.kernel import Record
from ..isolation import Isolation


class Sink(Protocol):
    """Where bad records can go: a topic or a log."""

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
    ) -> object:
        """Append one record."""


class LogLike(Sink, Protocol):
    """A log."""

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset."""

    def append_many(self, records: Iterable[GivenRecord], expect_offset: int | None = None) -> range:
        """Append records as one batch and return their offsets."""

    def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """One record."""

    def scan(
        self,
        start: int | None = None,
        end: int | None = None,
        max_bytes: int | None = None,
        *,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """The records of a range."""

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Records from an offset on, waiting for new ones."""


class ConsumerLike(Protocol):
    """A consumer."""

    def __iter__(self) -> Iterator[Record]: ...

    def drain(self) -> Iterator[Record]:
        """Records up to the current end."""

    def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[Record]:
        """The next records."""

    def commit(self, positions: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit what was returned, or these positions."""

    def seek(self, topic: str, partition: int, place: int) -> None:
        """Continue at an offset."""

    def close(self) -> None:
        """Leave the group."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ConsumerOptions(TypedDict, total=False):
    """The options of `Store.consumer`; see `Consumer`."""

    start: Literal["earliest", "latest"] | int | datetime
    on_lost: Literal["earliest", "latest", "error"]
    auto_commit_ms: int | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    member: str | None
    isolation: Isolation
    on_assigned: Callable[[set[tuple[str, int]]], None] | None
    on_revoked: Callable[[set[tuple[str, int]]], None] | None


class Partition(Protocol):
    """A partition, for reading one record."""

    def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """One record."""


class TopicLike(Sink, Protocol):
    """A topic."""

    @property
    def name(self) -> str:
        """Its name."""

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> tuple[int, int]:
        """Append one record and return its partition and offset."""

    def append_many(
        self, records: Iterable[GivenRecord], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records and return their offsets by partition."""

    def partition(self, number: int) -> Partition:
        """One partition."""

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """The current records, partition by partition."""


class Home(Protocol):
    """The store of a topic."""

    def create_topic(self, name: str, partitions: int = 1, *, exist_ok: bool = False) -> Sink:
        """The topic of that name, created if it does not exist."""

    @property
    def consumer(self) -> Callable[..., ConsumerLike]:
        """Read a topic as a member of a group: called with the group, the topic and the store's options."""
