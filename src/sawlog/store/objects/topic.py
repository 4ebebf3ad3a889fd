"""`ObjectTopic`: a `Topic` on object storage, or its version in a snapshot.

A call that writes to several partitions is one commit: everything is stored, or nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...batch.build import Encoder
from ...config import LogConfig
from ...display import counted, size_text
from ...errors import TopicNotFound
from ...log.ingest import rows_of
from ...log.maintenance import MaintenanceReport
from ...log.summaries import Blocks
from ...log.writer import BATCH_BYTES
from .. import base
from .. import settings as topic_settings
from ..descriptions import settings_text
from ..names import check_partition_number, check_topic_name
from ..partitioner import Router
from ..settings import Value
from ..writer import TopicWriter
from .partition import ObjectPartition, recipe_for
from .session import StoreSession
from .slices import ObjectSlice, ObjectSliceReader
from .state import State
from .state.entries import MARK
from .state.partitions import id_in_snapshot


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A read-only version of topics, as of one commit."""

    name: str
    #: When the snapshot was taken, by the clock of the process that took it.
    time_ms: int
    topics: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


class ObjectTopic(base.Topic):
    """A topic, identified by its id: a topic that is deleted and recreated is another one."""

    def __init__(
        self,
        session: StoreSession,
        name: str,
        topic_id: str,
        store: base.Store | None = None,
        *,
        tend: Callable[[str], list[MaintenanceReport]] | None = None,
        at: str | None = None,
    ) -> None:
        self._session = session
        #: The snapshot that the topic is read from.
        self._at = at
        self._name = name
        self._id = topic_id
        self._store = store
        #: Runs maintenance for a topic.
        self._tend = tend
        self._layout: _TopicLayout | None = None

    def _entry(self) -> Mapping[str, Any]:
        if self._at is not None:
            return self._in_snapshot(self._at)
        return self._existing(self._session.look(lambda state: state.topic(self._name)))

    def _existing(self, found: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if found is None or found["id"] != self._id:
            raise TopicNotFound(f"the topic {self._name!r} was deleted")
        return found

    def _layout_of(self, entry: Mapping[str, Any]) -> _TopicLayout:
        """Return the layout for an entry of the topic. An entry is replaced, never changed, so the layout is valid
        while the state has the same object."""
        found = self._layout
        if found is None or found.entry is not entry:
            found = self._layout = _TopicLayout(self._name, entry)
        return found

    def _writable(self, partition: object = None) -> _TopicLayout:
        """Return the topic for appends, as of the last commit that this process has seen: no request is sent, so that
        an append costs one create, and the commit itself decides in the end. If the partition does not exist, another
        process may have added it: then the bucket is asked."""
        if self._at is not None:
            return self._layout_of(self._in_snapshot(self._at))
        found = self._layout_of(self._existing(self._session.last_known(lambda state: state.topic(self._name))))
        if isinstance(partition, int) and partition >= found.partitions:
            found = self._layout_of(
                self._existing(self._session.look(lambda state: state.topic(self._name), fresh=True))
            )
        return found

    def _in_snapshot(self, name: str) -> Mapping[str, Any]:
        snapshot = self._session.look(lambda state: state.snapshots().get(name))
        found: Mapping[str, Any] | None = None if snapshot is None else snapshot["topics"].get(self._name)
        if found is None or id_in_snapshot(found["id"], name) != self._id:
            raise TopicNotFound(f"the snapshot {name!r} was deleted")
        return found

    def fork(self, name: str, at: str | SnapshotInfo | None = None) -> ObjectTopic:
        """Create a topic with the records and settings of this one, as they are now or in a snapshot. Nothing is
        copied: the new topic refers to the same objects, and from then on both change independently."""
        check_topic_name(name)
        wanted = self._at if at is None else str(at)
        made, source = str(uuid.uuid4()), self._id.partition(MARK)[0]
        action = {"do": "fork topic", "name": name, "id": made, "source": self._name, "source_id": source, "at": wanted}
        self._session.commit([action])
        return ObjectTopic(self._session, name, made)

    # --- properties

    @property
    def name(self) -> str:
        return self._name

    @property
    def id(self) -> str:
        return self._id

    @property
    def partitions(self) -> int:
        return int(self._entry()["partitions"])

    @property
    def settings(self) -> dict[str, Value]:
        return dict(self._entry()["settings"])

    @property
    def config(self) -> LogConfig:
        return self._layout_of(self._entry()).config

    @property
    def _created_ms(self) -> int:
        return int(self._entry().get("created_ms", 0))

    def __repr__(self) -> str:
        """Describe the topic from the last known state. Sends no request."""
        facts = self._session.glance(self._facts) or []
        return f"<ObjectTopic {self._name}{': ' if any(facts) else ''}{', '.join(filter(None, facts))}>"

    def _facts(self, state: State) -> list[str]:
        entry = state.topic(self._name)
        if self._at is not None:
            return [f"in the snapshot {self._at}"]
        if entry is None or entry["id"] != self._id:
            return ["deleted"]
        numbers = range(entry["partitions"])
        ends = [state.ends(self._id, number) for number in numbers]
        size = sum(each.size_bytes for number in numbers for each in state.extents(self._id, number, 0))
        records = counted(sum(end - lowest for lowest, end in ends), "record")
        return [counted(len(numbers), "partition"), records, size_text(size), settings_text(dict(entry["settings"]))]

    def _plan(self, number: int, start: int, end: int, *, epoch: int | None = None, **how: Any) -> list[ObjectSlice]:
        return self.partition(number)._plan(start, end, **how)

    def _slices(self, number: int) -> ObjectSliceReader:
        return ObjectSliceReader(self._session, self._name, self._id, number)

    def _blocks(
        self, number: int, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks] | None:
        """Summarise extents, whose exact record counts are not known: records may have been compacted away."""
        return None if exact else self.partition(number)._blocks(start, end, since)

    def partition(self, number: int) -> ObjectPartition:
        return self._partition(self._layout_of(self._entry()), number)

    def _partition(self, layout: _TopicLayout, number: int) -> ObjectPartition:
        layout.check_number(number)
        return ObjectPartition(self._session, self._name, self._id, number, layout.config)

    # --- writing

    def _router_for(self, partition: int | None) -> Router:
        layout = self._writable(partition)
        if partition is not None:
            layout.check_number(partition)
        return layout.router

    def _appends(self, number: int) -> AbstractContextManager[ObjectPartition]:
        return nullcontext(self._partition(self._writable(number), number))

    def _append_encoded(self, batches: Mapping[int, bytes], expect_offset: int | None = None) -> dict[int, range]:
        """Store batches that this process has encoded in several partitions, with one commit. For throughput use
        `append_many`, a writer, or many threads, which share a commit."""
        actions, inline = [], []
        for number, data in batches.items():
            rows = rows_of(memoryview(data))
            action, given = self._session.append_action(self._id, number, data, rows, expect_offset)
            actions.append(action)
            inline += given
        found: list[Any] = self._session.commit(actions, inline)
        return {number: range(*placed) for number, placed in zip(batches, found, strict=True)}

    def _split(self, records: list[Any], partition: int | None = None) -> dict[int, list[Any]]:
        """Split records by partition. Raises, as an append would, if one of them is invalid or too large."""
        layout = self._writable(partition)
        Encoder(replace(layout.router.recipe, codec=0)).many(records)
        return layout.router.split(records, partition)

    def _append_action(self, number: int, records: list[Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Return the action that appends records to a partition as one batch, and the batches that go inline."""
        data = self._writable(number).router.encode(records)
        return self._session.append_action(self._id, number, data, rows_of(memoryview(data)))

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> TopicWriter:
        made = super().writer(batch_bytes, linger_ms)
        self._session.kept.add(made)
        return made

    def maintain(self) -> list[MaintenanceReport]:
        """Apply retention, compaction and consolidation now, and return a report per partition."""
        self._session.check_writable()
        return [] if self._tend is None else self._tend(self._name)


class _TopicLayout:
    """Partition count, configuration and routing of a topic, derived from its entry in the state."""

    def __init__(self, name: str, entry: Mapping[str, Any]) -> None:
        self.entry = entry
        self.name = name
        self.partitions = int(entry["partitions"])
        self.keyed = topic_settings.is_compacted(entry["settings"])
        self.config = topic_settings.log_config(entry["settings"])

    @cached_property
    def router(self) -> Router:
        return Router(self, recipe_for(self.config))

    def check_number(self, number: object) -> None:
        check_partition_number(self.name, number, self.partitions)
