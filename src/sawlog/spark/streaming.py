"""Streaming reads: offsets that Spark keeps in its checkpoint, admission control, and progress as a consumer group.

Spark asks where a query starts (`initialOffset`) more than once: twice in the first run, and again after every restart
until the first micro-batch is committed. If "latest" were looked up each time, records that came between would never be
delivered. So the answer is kept: in this object for a run, and, for a query with a `groupId`, in the store until its
first micro-batch is done. Without a `groupId` a restart at that moment is detected and refused, not ignored.

Progress is shown as the group's offsets, so that lag can be seen. It is not an acknowledgement: nothing is ever deleted
because of it. Spark's `commit` comes one micro-batch late, so it is shown when Spark asks for more from there.

What Spark keeps has its own format (positions.py), and is checked before it is used (ranges.py): records that are gone
or replaced by others are detected.

This object lives in a process next to the driver as long as the query runs; copies of it read in the tasks.
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

from ..clock import Stopwatch
from ..errors import DataLoss, SawlogError, TopicNotFound
from ..store.base import Store, Topic
from . import places as _places
from .history import History, HistoryTask
from .history import read as read_history
from .options import Point, ReadOptions
from .places import Places
from .planning import plan
from .positions import EpochPosition, Json, Positions, Share
from .ranges import starts, still_there, without_missing
from .reading import arrow_schema, read

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger("sawlog.spark")

#: The documents of a group with the starts of its sources; version 0.2 had one for the whole group.
_START, _OLD_START = "start", "start"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("sawlog")`."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._places: Places | None = None
        self._initial: Json | None = None
        self._target: Positions | None = None
        self._store: Store | None = None
        self._shown: Json | None = None
        self._triggered: Stopwatch | None = None
        self._began = False

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs."""
        return {"_options": self._options, "_columns": self._columns}

    @property
    def places(self) -> Places:
        """The partitions, opened when first needed."""
        if self._places is None:
            self._places = Places(self._options)
        return self._places

    # --- where it starts

    def initialOffset(self) -> Json:
        """Where the query starts; the same however often Spark asks."""
        if self._initial is None:
            if self._options.starting_table:
                start = Point("earliest", option="startingTable")
            else:
                start = self._options.start or Point("latest", option="startingOffsets")
            moves = start.kind != "offsets" or any(number < 0 for _, _, number in start.each)
            if moves and self._options.group is not None:
                self._initial = self._kept_start(self._options.group, start)
            else:
                self._initial = self._resolved(start).to_json()
        return self._initial

    def _resolved(self, start: Point) -> Positions:
        found = self.places.resolve(start)
        if not self._options.starting_table:
            return found
        return History(self.places).begun(replace(found, at={}), self._shares()).over(found)

    def _kept_start(self, group: str, start: Point) -> Json:
        """Looked up once, and kept in the store until the first micro-batch is done. Each source of a group has its
        own: a join of two topics, or two queries, may have the same groupId."""
        _ = self.places  # first: a path without a store is an error, and no store is created
        with self._writable().groups.documents(group) as documents:
            name = self._start_name()
            kept = documents.find(name)
            if kept is not None:
                return kept
            old = documents.find(_OLD_START)
            if old is not None and self._is_ours(old):
                return old
            found = self._resolved(start).to_json()
            documents.keep(name, found)
            return found

    def _start_name(self) -> str:
        """The document for the start of a source: what it subscribes to, and where it starts."""
        said = repr((self._options.subscription, self._options.start, self._options.later_than_all))
        said += " table" if self._options.starting_table else ""
        return f"{_START}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"

    def _is_ours(self, kept: Json) -> bool:
        """Whether a start that version 0.2 has kept, one per group, is of the topics of this source."""
        there = {topic.name for topic in self.places.topics(lost_ok=True)}
        read = {topic for topic, _ in Positions.from_json(kept).at}
        return bool(read) and read <= there

    def _forget_start(self, group: str) -> None:
        """The first micro-batch is done: from here on Spark's checkpoint has the position."""
        if self._began:
            return
        with self._writable().groups.documents(group) as documents:
            documents.remove(self._start_name())
            old = documents.find(_OLD_START)
            if old is not None and self._is_ours(old):
                documents.remove(_OLD_START)
            documents.sync()
        self._began = True

    def _writable(self) -> Store:
        if self._store is None:
            self._store = _places.open_store(self._options.where, "w")
        return self._store

    # --- how much at a time

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limits of maxOffsetsPerTrigger and minOffsetsPerTrigger. Spark ignores them and asks for everything if
        the trigger is `once`."""
        least, most = self._options.min_offsets, self._options.max_offsets
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        """This run reads only what is there now."""
        self._target = self.places.positions(self._shares())

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the next micro-batch; `start` itself if there is nothing to read."""
        if start != self._initial:  # Spark asks for more from there when everything before it is done
            self._show(start)
        shares = self._shares()
        before = without_missing(self.places, Positions.from_json(start), shares)
        if self._options.starting_table:
            before = History(self.places).begun(before, shares)
        if self._target is None:
            ends = self.places.positions(shares)
        else:
            ends = still_there(self.places, self._target, shares)
        began, begun = starts(self.places, before, shares, ends)
        ahead = {share: lag for share, end in ends.at.items() if (lag := end.offset - began[share]) > 0}
        if not isinstance(limit, ReadAllAvailable) and self._waits(sum(ahead.values())):
            return start
        if isinstance(limit, ReadMaxRows) and sum(ahead.values()) > limit.max_rows:
            ahead = shared_out(ahead, limit.max_rows)
        moved = {share: EpochPosition(began[share] + n, ends.at[share].epoch) for share, n in ahead.items()}
        return before.after(moved, ends, begun).to_json() if moved else start

    def _waits(self, available: int) -> bool:
        """Whether there is too little for now, by minOffsetsPerTrigger and maxTriggerDelay. The first micro-batch of a
        run never waits, as with Kafka's source."""
        least, triggered = self._options.min_offsets, self._triggered
        if least is None or self._target is not None or not available:
            return False
        if triggered is not None and available < least and triggered.elapsed_ms < self._options.max_delay_ms:
            return True
        self._triggered = Stopwatch()
        return False

    def _shares(self) -> list[tuple[Topic, int]]:
        """All current partitions; a topic that no longer exists is an error, or left out."""
        try:
            return self.places.shares(lost_ok=not self._options.fail_on_data_loss)
        except TopicNotFound as error:
            raise DataLoss(f"{error}. failOnDataLoss=false would warn instead: continuing without it") from error

    def reportLatestOffset(self) -> Json:
        """For the query's progress, which shows the lag: offsets only."""
        return self.places.positions(self._shares()).offsets()

    @property
    def positions_lost(self) -> int:
        """How often records were gone, or replaced by others, since this run began."""
        return self.places.losses.count

    # --- a micro-batch

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of one micro-batch: for all of it, because Spark considers its end as read whatever they do."""
        before, planned = Positions.from_json(start), Positions.from_json(end)
        tasks: list[InputPartition] = []
        if self._options.starting_table:
            history = History(self.places)
            before, tasks = history.taken(history.begun(before, self._shares()), planned)
        return [*tasks, *plan(self.places, self._options, before, planned, moved=start == self._initial)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        if isinstance(partition, HistoryTask):
            return read_history(partition, self._columns, arrow_schema(self._columns))
        options = self._options
        return read(partition, self._columns, fail_on_data_loss=options.fail_on_data_loss, storage=options.storage)

    def commit(self, end: Json) -> None:
        """Spark will not ask for anything before this again."""
        self._show(end)

    def _show(self, done: Json) -> None:
        """Everything before this is done: show it as the group's progress."""
        group = self._options.group
        if group is None or done == self._shown:
            return
        try:
            store = self._writable()
            offsets = _of_topics_in(store, Positions.from_json(done))
            epochs = {share: position.epoch for share, position in offsets.items()}
            store.groups.commit(
                group,
                {share: position.offset for share, position in offsets.items()},
                metadata="spark",
                epochs=epochs,
            )
            self._forget_start(group)
            self._shown = done
        except SawlogError as error:
            _logger.warning("the progress of the group %r could not be shown: %s", group, error)

    def stop(self) -> None:
        """Close the files."""
        places, self._places = self._places, None
        store, self._store = self._store, None
        if places is not None:
            places.close()
        if store is not None:
            store.close()


def _of_topics_in(store: Store, positions: Positions) -> Mapping[Share, EpochPosition]:
    """Those of partitions that currently exist."""
    there = {name: store.topic(name) for name in {topic for topic, _ in positions.at} if name in store}
    return {
        (name, number): position
        for (name, number), position in positions.at.items()
        if (topic := there.get(name)) is not None
        and number < topic.partitions
        and not positions.is_recreated(name, topic.id, store.id)
    }


def shared_out(ahead: dict[Share, int], most: int) -> dict[Share, int]:
    """That many offsets in total, each partition in proportion to what it has, and at least one each, as with Kafka's
    source; the largest remainders are rounded up. More than `most` only if there are more partitions."""
    total = sum(ahead.values())
    shares = {each: max(lag * most // total, 1) for each, lag in ahead.items()}
    left = most - sum(shares.values())
    for each in sorted(ahead, key=lambda one: (-(ahead[one] * most % total), one))[: max(left, 0)]:
        shares[each] += shares[each] < ahead[each]
    for each in sorted(shares, key=lambda one: (-shares[one], one)):  # the large ones give what the small ones got
        given = min(max(-left, 0), shares[each] - 1)
        shares[each] -= given
        left += given
    return shares
