"""`StoreFace`: what a store offers that is made of its topics and groups, wherever they are: SQL and consumers. `Store`
has it, and a store on object storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from .groups.consumer import SESSION_TIMEOUT_MS, Consumer, OnShares
from .groups.host import ConsumedTopic, ConsumerGroups, ConsumerHost
from .groups.kafka_names import KafkaNames, translated
from .groups.offsets import Start
from .groups.position import OnLost

if TYPE_CHECKING:
    import pyarrow as pa

    from ..isolation import Isolation
    from ..sql.declared import Wanted
    from ..sql.sources import TableTopic

    class _Topic(ConsumedTopic, TableTopic, Protocol):
        """A topic."""

    class _Below(Protocol):
        """What it is made of."""

        @property
        def path(self) -> str: ...
        @property
        def mode(self) -> str: ...
        @property
        def groups(self) -> ConsumerGroups: ...
        def topics(self) -> list[str]:
            """The names of all topics."""

        def topic(self, name: str) -> _Topic:
            """The topic of that name."""

        def _check_open(self) -> None: ...
        def _consume(self, made: Consumer) -> None:
            """Close it with the store."""

else:
    _Below = object


class StoreFace(_Below):
    """A store, as programs query and consume it."""

    def __contains__(self, name: object) -> bool:
        return name in self.topics()

    # --- SQL

    def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        schemas: Mapping[str, Wanted] | None = None,
        isolation: Isolation = "committed",
    ) -> pa.Table:
        """Run a query over topics and files with DuckDB, and return its result as a `pyarrow.Table`.

        A topic is a table with the columns partition, offset, timestamp, key, value and headers; names with dots or
        dashes need double quotes. `schemas` says, by topic, what values are made of, where that is not what the topic
        declares. `parameters` are for `?` or `$name` in the query. What is appended while it runs is not seen.
        """
        from ..sql import engine

        self._check_open()
        return engine.query(self, query, parameters, schemas=schemas, isolation=isolation)

    def sql_reader(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        schemas: Mapping[str, Wanted] | None = None,
        isolation: Isolation = "committed",
    ) -> pa.RecordBatchReader:
        """The same as a stream of batches, for results that do not fit into memory. Close it, or read it to its end."""
        from ..sql import engine

        self._check_open()
        return engine.reader(self, query, parameters, schemas=schemas, isolation=isolation)

    # --- consumers

    #: How long a session lasts, if a consumer does not say it.
    _session_timeout_ms = SESSION_TIMEOUT_MS

    @property
    def _consumed(self) -> ConsumerHost:
        """The store, as consumers look at it again and again."""
        return self

    def consumer(
        self,
        group: str | None,
        topics: str | Iterable[str],
        *,
        start: Start = "earliest",
        on_lost: OnLost = "earliest",
        auto_commit_ms: int | None = 5000,
        session_timeout_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        member: str | None = None,
        isolation: Isolation = "committed",
        on_assigned: OnShares | None = None,
        on_revoked: OnShares | None = None,
        **kafka: Unpack[KafkaNames],
    ) -> Consumer:
        """Read topics as a member of a group (None: alone, without committing); see `Consumer`.

        `start` is where a group without committed offsets begins: "earliest", "latest", an offset or a datetime.
        `on_lost` is where to continue if the records at a position are gone: "earliest", "latest", or "error" to raise
        `PositionLost`. Offsets are committed every `auto_commit_ms`; with None by `commit` only. A member loses its
        partitions if it sends no heartbeat for `session_timeout_ms` (10 s, on object storage 45 s, because each of them
        is a commit there), or requests no record for `max_poll_interval_ms`.
        `member` is its name for display. `on_assigned` and `on_revoked` are called with the partitions that it has
        got, and is about to give up. Some of Kafka's names are understood too, with a warning.
        """
        self._check_open()
        options: dict[str, Any] = {
            "start": start,
            "on_lost": on_lost,
            "auto_commit_ms": auto_commit_ms,
            "session_timeout_ms": self._session_timeout_ms if session_timeout_ms is None else session_timeout_ms,
            "max_poll_interval_ms": max_poll_interval_ms,
            "member": member,
            "isolation": isolation,
            "on_assigned": on_assigned,
            "on_revoked": on_revoked,
        }
        if kafka:
            options |= translated(kafka)
        made = Consumer(self._consumed, group, [topics] if isinstance(topics, str) else list(topics), **options)
        self._consume(made)
        return made
