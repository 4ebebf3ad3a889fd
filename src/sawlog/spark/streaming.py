"""Streaming reads: offsets that Spark keeps in its checkpoint, admission control, and progress as a consumer group.

Spark asks where a query starts (`initialOffset`) more than once: twice in the first run, and again after every restart
until the first micro-batch is committed. If "latest" were looked up each time, records that came between would never be
delivered. So the answer is kept: in this object for a run, and, for a query with a `groupId`, in the store until its
first micro-batch is done. Without a `groupId` a restart in that moment is noticed and refused, not passed over.

Progress is shown as the group's offsets, so that lag can be seen, and is no acknowledgement: nothing is ever deleted
because of it. Spark's `commit` comes one micro-batch late, so it is shown when Spark asks for more from there.

This object lives in a process beside the driver for as long as the query runs; copies of it read in the tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ..errors import SawlogError, TopicNotFound
from ..topics import documents
from ..topics.members import group_directory
from ..topics.store import Store
from .options import Offsets, Point, ReadOptions
from .places import Places
from .reading import DataLoss, plan, read

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger("sawlog.spark")

#: As Spark keeps them: {"orders": {"0": 1200}}.
Json = dict[str, dict[str, int]]

_START = "start"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("sawlog")`."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._places: Places | None = None
        self._initial: Json | None = None
        self._target: Offsets | None = None
        self._store: Store | None = None
        self._shown: Json | None = None
        self._triggered_s = 0.0
        self._began = False

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs."""
        return {"_options": self._options, "_columns": self._columns}

    @property
    def places(self) -> Places:
        """The partitions, looked at when first needed."""
        if self._places is None:
            self._places = Places(self._options)
        return self._places

    # --- where it starts

    def initialOffset(self) -> Json:
        """Where the query starts; the same however often Spark asks."""
        if self._initial is None:
            start = self._options.start or Point("latest", option="startingOffsets")
            moves = start.kind != "offsets" or any(number < 0 for _, _, number in start.each)
            if moves and self._options.group is not None:
                self._initial = self._kept_start(self._options.group, start)
            else:
                self._initial = _as_json(self.places.resolve(start))
        return self._initial

    def _kept_start(self, group: str, start: Point) -> Json:
        """Looked up once, and kept in the store until the first micro-batch is done."""
        store = self._writable()
        with store.groups.offsets.turn():
            directory = group_directory(store.directory, group, create=True)
            try:
                if directory.exists(_START):
                    kept: Json = documents.load(directory, _START)
                    return kept
                found = _as_json(self.places.resolve(start))
                documents.store(directory, _START, found)
                return found
            finally:
                directory.close()

    def _forget_start(self, group: str) -> None:
        """The first micro-batch is done: from here on Spark's checkpoint knows where to go on."""
        if self._began:
            return
        store = self._writable()
        with store.groups.offsets.turn():
            directory = group_directory(store.directory, group, create=True)
            try:
                directory.remove(_START)
                directory.sync()
            finally:
                directory.close()
        self._began = True

    def _writable(self) -> Store:
        if self._store is None:
            self._store = Store.open(self._options.path, upkeep_interval_s=None)
        return self._store

    # --- how much at a time

    def getDefaultReadLimit(self) -> ReadLimit:
        """What maxOffsetsPerTrigger says."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run reads."""
        self._target = self._ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Up to where the next micro-batch goes."""
        if start != self._initial:  # Spark asks for more from there when everything before it is done
            self._show(start)
        began = _from_json(start)
        ends = self._target if self._target is not None else self._ends()
        ends = {topic: dict(each) for topic, each in ends.items()}
        for topic, each in began.items():
            for number, offset in each.items():
                end = ends.setdefault(topic, {}).setdefault(number, offset)  # what was read is not forgotten
                if end < offset:
                    each[number] = self._start_again(topic, number, offset, end)
        behind = _behind(began, ends)
        if self._waits(sum(behind.values())):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if most is not None and sum(behind.values()) > most:
            shares = _shared_out(behind, most)
            ends = _added(began, ends, behind, shares)
        return _as_json(ends)

    def _start_again(self, topic: str, number: int, offset: int, end: int) -> int:
        """Where to go on in a partition that is shorter than what was read of it."""
        said = (
            f"partition {number} of {topic!r} was read up to {offset} and ends at {end} now: it was cut off, or the "
            "topic was deleted and made anew"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{said}; failOnDataLoss=false would go on at its beginning")
        _logger.warning("%s; going on at its beginning", said)
        return self.places.store.topic(topic).partition(number).lowest_offset

    def _waits(self, available: int) -> bool:
        """Whether there is too little for now, by minOffsetsPerTrigger and maxTriggerDelay."""
        least, now = self._options.min_offsets, time.monotonic()
        if least is None or self._target is not None:
            return False
        if not self._triggered_s:
            self._triggered_s = now
        if 0 < available < least and (now - self._triggered_s) * 1000 < self._options.max_delay_ms:
            return True
        if available:
            self._triggered_s = now
        return False

    def _ends(self) -> Offsets:
        """Where everything ends now; a topic that is gone is an error, or left out."""
        try:
            return self.places.ends(lost_ok=not self._options.fail_on_data_loss)
        except TopicNotFound as error:
            raise DataLoss(f"{error}; failOnDataLoss=false would go on without it") from error

    def reportLatestOffset(self) -> Json:
        """For the query's progress, where lag is seen."""
        return _as_json(self._ends())

    # --- a micro-batch

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of one micro-batch."""
        began, ends = _from_json(start), _from_json(end)
        for topic, each in ends.items():
            for number, last in each.items():
                if began.get(topic, {}).get(number, 0) > last:
                    self._pass_over(began, topic, number, last, moved=start == self._initial)
        try:
            return plan(self.places, self._options, began, ends)
        except TopicNotFound as error:
            raise DataLoss(f"{error}; failOnDataLoss=false would go on without it") from error

    def _pass_over(self, began: Offsets, topic: str, number: int, last: int, *, moved: bool) -> None:
        """This micro-batch ends before it starts: either the query's start has moved, or the partition began anew."""
        said = f"this micro-batch should go from {began[topic][number]} to {last} in partition {number} of {topic!r}"
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{said}: where the query starts is not what it was. A query that starts at latest or at a time needs "
                f'a name for itself, .option("groupId", ...), to survive a restart in its first micro-batch. Remove '
                f"its checkpoint to start anew"
            )
        _logger.warning("%s", said)
        if not moved:
            del began[topic][number]  # from its beginning

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        return read(partition, self._columns, fail_on_data_loss=self._options.fail_on_data_loss)

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
            there = {name: store.topic(name).partitions for name in done if name in store}
            offsets = {
                (topic, number): at
                for topic, each in _from_json(done).items()
                for number, at in each.items()
                if number < there.get(topic, 0)
            }
            store.groups.commit(group, offsets, metadata="spark")
            self._forget_start(group)
            self._shown = done
        except SawlogError as error:
            _logger.warning("the progress of the group %r could not be shown: %s", group, error)

    def stop(self) -> None:
        """Let go of the files."""
        places, self._places = self._places, None
        store, self._store = self._store, None
        if places is not None:
            places.close()
        if store is not None:
            store.close()


def _as_json(offsets: Offsets) -> Json:
    return {topic: {str(number): at for number, at in sorted(each.items())} for topic, each in sorted(offsets.items())}


def _from_json(offsets: Json) -> Offsets:
    return {topic: {int(number): at for number, at in each.items()} for topic, each in (offsets or {}).items()}


def _behind(began: Offsets, ends: Offsets) -> dict[tuple[str, int], int]:
    """How many offsets each partition has ahead of it."""
    return {
        (topic, number): max(last - began.get(topic, {}).get(number, 0), 0)
        for topic, each in ends.items()
        for number, last in each.items()
    }


def _shared_out(behind: dict[tuple[str, int], int], most: int) -> dict[tuple[str, int], int]:
    """So many offsets in all, each partition in proportion to what it has, the largest remainders rounded up."""
    total = sum(behind.values())
    shares = {each: lag * most // total for each, lag in behind.items()}
    left = most - sum(shares.values())
    for each in sorted(behind, key=lambda one: (-(behind[one] * most % total), one))[:left]:
        shares[each] += 1
    return shares


def _added(
    began: Offsets, ends: Offsets, behind: dict[tuple[str, int], int], shares: dict[tuple[str, int], int]
) -> Offsets:
    return {
        topic: {
            number: last - behind[topic, number] + min(shares[topic, number], behind[topic, number])
            for number, last in each.items()
        }
        for topic, each in ends.items()
    }
