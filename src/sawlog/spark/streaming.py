"""Streaming reads: offsets in Spark's checkpoint, admission control, and progress as a consumer group.

Spark asks where a query starts (`initialOffset`) more than once: twice in the first run, and again after every restart
until the first micro-batch is committed. Looking up "latest" each time would lose the records that arrived in between.
So the answer is kept: in this object for a run and, for a query with a `groupId`, in the store until its first
micro-batch is done. Without a `groupId`, a restart in that window is detected and refused.

Progress is published as the group's offsets, so that tools can show the lag. It is not an acknowledgement: nothing is
deleted because of it. Spark's `commit` comes one micro-batch late, so progress is also published when Spark asks for
the records after it.

With `startingTable` a stream begins with the tables of its topics, then continues with the log. Offsets mean the same
in both, so a micro-batch is still a set of offset ranges: the part of a range below the table's end is read from the
table's files, the rest from the log. Which of the two holds a record may change between attempts, because the table job
moves records to the table and retention removes them from the log; the record is the same. So delivery is exactly once
for the same reasons as without a table, and the checkpoint has the same format: the option can be removed once the log
holds everything still to be read. A table without a column `value` cannot be used. Records in the quarantine are read
as well, so that the stream returns everything the log held.

The positions in Spark's checkpoint have their own format (subscription.py) and are checked before use (planning.py):
records that are gone or were replaced are detected.

This object lives in a Python process beside the driver while the query runs; copies of it read in the tasks.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from .. import tables
from ..clock import Stopwatch
from ..errors import DataLoss, InvalidConfig, SawlogError, TopicNotFound
from ..sql.history import check_same_log, check_same_topic
from ..store.base import Store, Topic, TopicPartition
from ..tables.formats import DataFile, TableSnapshot
from . import subscription
from .options import OffsetSpec, ReadOptions
from .planning import clamp_to_store, drop_missing_topics, plan, starts
from .reading import TableFileTask, read
from .subscription import EpochPosition, Json, Positions, SubscribedPartitions

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger("sawlog.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("sawlog")`."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._places: SubscribedPartitions | None = None
        self._initial: Json | None = None
        self._target: Positions | None = None
        self._store: Store | None = None
        self._shown: Json | None = None
        self._triggered: Stopwatch | None = None
        self._began = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that a task needs."""
        return {"_options": self._options, "_columns": self._columns}

    @property
    def places(self) -> SubscribedPartitions:
        """The subscribed partitions, opened on first use."""
        if self._places is None:
            self._places = SubscribedPartitions(self._options)
        return self._places

    # --- start positions

    def initialOffset(self) -> Json:
        """Return the start of the query: the same on every call."""
        if self._initial is None:
            if self._options.starting_table:
                start = OffsetSpec("earliest", option="startingTable")
            else:
                start = self._options.start or OffsetSpec("latest", option="startingOffsets")
            moves = start.kind != "offsets" or any(number < 0 for _, _, number in start.each)
            if moves and self._options.group is not None:
                self._initial = self._persisted_start(self._options.group, start)
            else:
                self._initial = self._resolved(start).to_json()
        return self._initial

    def _resolved(self, start: OffsetSpec) -> Positions:
        found = self.places.resolve(start)
        if not self._options.starting_table:
            return found
        return TableHistory(self.places).begun(replace(found, at={}), self._partitions()).over(found)

    def _persisted_start(self, group: str, start: OffsetSpec) -> Json:
        """Look up the start once and keep it in the store until the first micro-batch is done. Each source of a group
        has its own: a join of two topics, or two queries, may have the same groupId."""
        _ = self.places  # first: a path without a store is an error and must not create one
        with self._writable().groups._documents(group) as documents:
            name = self._start_name()
            found = documents.find(name)
            if found is None:
                found = self._resolved(start).to_json()
                documents.keep(name, found)
            return found

    def _start_name(self) -> str:
        """Name the document for this source's start by its subscription and start option."""
        said = repr((self._options.subscription, self._options.start, self._options.later_than_all))
        said += " table" if self._options.starting_table else ""
        return f"start-{hashlib.sha256(said.encode()).hexdigest()[:16]}"

    def _forget_start(self, group: str) -> None:
        """The first micro-batch is done: Spark's checkpoint now holds the position."""
        if self._began:
            return
        with self._writable().groups._documents(group) as documents:
            documents.remove(self._start_name())
            documents.sync()
        self._began = True

    def _writable(self) -> Store:
        if self._store is None:
            self._store = subscription.open_store(self._options.where, "w")
        return self._store

    # --- admission control

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit set by maxOffsetsPerTrigger or minOffsetsPerTrigger. With the trigger `once`, Spark ignores
        it and asks for everything."""
        least, most = self._options.min_offsets, self._options.max_offsets
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends of this run at the current ends."""
        self._target = self.places.positions(self._partitions())

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end of the next micro-batch; `start` itself if there is nothing to read."""
        if start != self._initial:  # Spark asks for more from `start` when everything before it is done
            self._publish_progress(start)
        partitions = self._partitions()
        before = drop_missing_topics(self.places, Positions.from_json(start), partitions)
        if self._options.starting_table:
            before = TableHistory(self.places).begun(before, partitions)
        if self._target is None:
            ends = self.places.positions(partitions)
        else:
            ends = clamp_to_store(self.places, self._target, partitions)
        began, begun = starts(self.places, before, partitions, ends)
        ahead = {partition: lag for partition, end in ends.at.items() if (lag := end.offset - began[partition]) > 0}
        if not isinstance(limit, ReadAllAvailable) and self._waits(sum(ahead.values())):
            return start
        if isinstance(limit, ReadMaxRows) and sum(ahead.values()) > limit.max_rows:
            ahead = split_quota(ahead, limit.max_rows)
        moved = {
            partition: EpochPosition(began[partition] + n, ends.at[partition].epoch) for partition, n in ahead.items()
        }
        return before.after(moved, ends, begun).to_json() if moved else start

    def _waits(self, available: int) -> bool:
        """Return whether to wait for more records, by minOffsetsPerTrigger and maxTriggerDelay. The first micro-batch
        of a run never waits, as with Kafka's source."""
        least, triggered = self._options.min_offsets, self._triggered
        if least is None or self._target is not None or not available:
            return False
        if triggered is not None and available < least and triggered.elapsed_ms < self._options.max_delay_ms:
            return True
        self._triggered = Stopwatch()
        return False

    def _partitions(self) -> list[tuple[Topic, int]]:
        """Return all current partitions. A topic that no longer exists is an error, or left out."""
        try:
            return self.places.partitions(lost_ok=not self._options.fail_on_data_loss)
        except TopicNotFound as error:
            raise DataLoss(f"{error}. failOnDataLoss=false would warn instead: continuing without it") from error

    def reportLatestOffset(self) -> Json:
        """Return the current ends for the query's progress, which shows the lag: offsets only."""
        return self.places.positions(self._partitions()).offsets()

    @property
    def positions_lost(self) -> int:
        """Number of times records were gone or replaced since this run began."""
        return self.places.losses.count

    # --- micro-batches

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Plan the tasks of one micro-batch. They cover all of it: Spark considers its end as read, whatever they
        do."""
        before, planned = Positions.from_json(start), Positions.from_json(end)
        tasks: list[InputPartition] = []
        if self._options.starting_table:
            history = TableHistory(self.places)
            before, tasks = history.plan_table_reads(history.begun(before, self._partitions()), planned)
        return [*tasks, *plan(self.places, self._options, before, planned, moved=start == self._initial)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one partition. Runs in a task."""
        return read(partition, self._columns, self._options)

    def commit(self, end: Json) -> None:
        """Publish progress: Spark will not ask for earlier records again."""
        self._publish_progress(end)

    def _publish_progress(self, done: Json) -> None:
        """Publish `done` as the group's progress."""
        group = self._options.group
        if group is None or done == self._shown:
            return
        try:
            store = self._writable()
            offsets = _of_topics_in(store, Positions.from_json(done))
            epochs = {partition: position.epoch for partition, position in offsets.items()}
            store.groups.commit(
                group,
                {partition: position.offset for partition, position in offsets.items()},
                metadata="spark",
                epochs=epochs,
            )
            self._forget_start(group)
            self._shown = done
        except SawlogError as error:
            _logger.warning("the progress of the group %r could not be shown: %s", group, error)

    def stop(self) -> None:
        """Close the stores."""
        places, self._places = self._places, None
        store, self._store = self._store, None
        if places is not None:
            places.close()
        if store is not None:
            store.close()


def _of_topics_in(store: Store, positions: Positions) -> Mapping[TopicPartition, EpochPosition]:
    """Select the positions of partitions that currently exist."""
    there = {name: store.topic(name) for name in {topic for topic, _ in positions.at} if name in store}
    return {
        (name, number): position
        for (name, number), position in positions.at.items()
        if (topic := there.get(name)) is not None
        and number < topic.partitions
        and not positions.is_recreated(name, topic.id, store.id)
    }


def split_quota(ahead: dict[TopicPartition, int], most: int) -> dict[TopicPartition, int]:
    """Divide `most` offsets among the partitions in proportion to their lag, at least one each, as Kafka's source does;
    the largest remainders are rounded up. Exceeds `most` only if there are more partitions than that."""
    total = sum(ahead.values())
    shares = {each: max(lag * most // total, 1) for each, lag in ahead.items()}
    left = most - sum(shares.values())
    for each in sorted(ahead, key=lambda one: (-(ahead[one] * most % total), one))[: max(left, 0)]:
        shares[each] += shares[each] < ahead[each]
    for each in sorted(
        shares, key=lambda one: (-shares[one], one)
    ):  # take the surplus of the small ones from the large ones
        given = min(max(-left, 0), shares[each] - 1)
        shares[each] -= given
        left += given
    return shares


# --- tables


class TableHistory:
    """The tables of the topics that a stream reads."""

    def __init__(self, places: SubscribedPartitions) -> None:
        self._places = places

    def begun(self, before: Positions, partitions: Sequence[tuple[Topic, int]]) -> Positions:
        """Add a position for every partition that is new to the query: the start of its table."""
        at: dict[TopicPartition, EpochPosition] = {}
        found: dict[str, TableSnapshot | None] = {}
        for topic, number in partitions:
            if (topic.name, number) in before.at:
                continue
            if topic.name not in found:
                found[topic.name] = _snapshot(topic)
            snapshot = found[topic.name]
            if snapshot is not None and number in snapshot.marks:
                log = topic.partition(number)
                start = min(snapshot.marks[number].start, log.lowest_offset)
                at[topic.name, number] = EpochPosition(start, log.position()[1])
        return replace(before, at={**before.at, **at}) if at else before

    def plan_table_reads(self, start: Positions, end: Positions) -> tuple[Positions, list[InputPartition]]:
        """Return the positions from which the log must be read, and the tasks for the table files before them."""
        tasks: list[InputPartition] = []
        at = dict(start.at)
        store = self._places.store
        for name in sorted({topic for topic, _ in end.at}):
            if name not in store:
                continue  # planning the log reports it
            topic = store.topic(name)
            if end.is_recreated(name, topic.id, store.id) or start.is_recreated(name, topic.id, store.id):
                continue
            snapshot = _snapshot(topic)
            if snapshot is None:
                continue
            files = [*snapshot.data, *_bad_files(topic)]
            for (_, number), last in sorted(each for each in end.at.items() if each[0][0] == name):
                first, mark = at.get((name, number)), snapshot.marks.get(number)
                if mark is None or first is None or first.offset >= mark.end:
                    continue
                check_same_log(topic, number, mark)
                until = min(last.offset, mark.end)
                tasks += _tasks(files, name, number, max(first.offset, mark.start), until)
                at[name, number] = EpochPosition(max(until, first.offset), first.epoch)
        return replace(start, at=at), tasks


def _snapshot(topic: Topic) -> TableSnapshot | None:
    info = topic.table
    if info is None:
        return None
    found = tables.snapshot(info)
    check_same_topic(found, topic)
    if "value" not in found.schema.names:
        raise InvalidConfig(f"option startingTable: the table of {topic.name!r} has no column value")
    return found


def _bad_files(topic: Topic) -> Sequence[DataFile]:
    """The quarantine's files. Call after reading the table: the quarantine is committed first."""
    info = topic.table
    found = None if info is None else tables.open_table(tables.quarantine_of(info)).snapshot()
    return () if found is None else found.data


def _tasks(files: Sequence[DataFile], topic: str, number: int, first: int, last: int) -> Iterator[TableFileTask]:
    for file in files:
        if file.partitions is not None and not file.partitions.first <= number <= file.partitions.last:
            continue
        if file.offsets is not None and (file.offsets.last < first or file.offsets.first >= last):
            continue
        yield TableFileTask(file.path, topic, number, first, last)
