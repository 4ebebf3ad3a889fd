"""`repartition`: a topic with a different number of partitions.

A new topic is written next to the old one, then replaces it atomically:

```
orders, orders--repartition-1f0c22ab   the records are read, sorted and written to the new topic
orders locked                          records that arrived meanwhile are copied; no process can write to the topic now
orders                                 the new topic gets the name (Store.replace_topic); the old one is deleted
```

Records go to the partition of their key (Kafka's murmur2) and keep key, value, headers and timestamp; records without a
key are distributed evenly. The records of a key keep their order: within a partition by offset; if a key is in several
partitions because partitions were added, these are merged by time. With an unchanged number of partitions, every record
moves to the partition of its key.

The new topic counts its offsets from 0 and has its own id, so offsets that consumer groups committed for the old one do
not apply: the groups start like new ones. A process that has the old topic open gets `TopicNotFound` at its next
append. A run that crashes leaves the topic unchanged; the next run removes its leftovers and starts again.
"""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # at module level: Spark inspects the annotations of `place`

from ..errors import InvalidConfig, SawlogError
from ..store.directory.store import DirectoryStore
from ..store.directory.topic import DirectoryTopic
from ..store.names import quoted
from ..store.partitioner import partitions_for
from . import running
from .running import Advance

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_logger = logging.getLogger("sawlog.pipelines")

_MARK = "--repartition-"
#: Records without a key switch to the next partition after this many, so that all partitions get some.
_KEYLESS_RUN = 4096
#: Settings that would change or drop records during the copy: set only when the new topic is complete.
_LATER = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type")

Ends = dict[int, int]


@dataclass(frozen=True, slots=True)
class RepartitionParams:
    """Parameters of `repartition`."""

    #: Directory of the store.
    data: str
    topic: str
    #: New number of partitions.
    partitions: int


@dataclass(frozen=True, slots=True)
class RepartitionReport:
    """A topic before and after."""

    topic: str
    records: int
    size_bytes_before: int
    size_bytes: int
    partitions_before: int
    partitions: int
    #: Records that arrived meanwhile and were copied under the lock.
    followed: int


def check_params(params: RepartitionParams) -> None:
    """Raise for errors that can be detected without Spark."""
    if _MARK in params.topic:
        raise InvalidConfig(f"{params.topic!r} is left from an unfinished run; repartition the topic itself")
    running.check_least(params, partitions=1)
    running.check_topic(params.data, params.topic)  # also: a mistyped directory must not become a store


def run(spark: SparkSession, params: RepartitionParams, progress: Advance | None = None) -> RepartitionReport:
    """Repartition the topic."""
    check_params(params)
    name = params.topic
    with (
        DirectoryStore.open(params.data, maintenance_interval_s=None) as store,
        running.exclusive_directory(Path(store.path) / "pipelines" / f"repartition-{quoted(name)}"),
    ):
        for other in store.topics():
            if other.startswith(f"{name[:220]}{_MARK}"):
                store.delete_topic(other)  # left by a run that crashed
        old = store.topic(name)
        made = f"{name[:220]}{_MARK}{uuid.uuid4().hex[:8]}"
        try:
            return _Repartition(spark, store, old, made, params.partitions, progress).run()
        except BaseException:
            _discard(store, made)
            raise


def _discard(store: DirectoryStore, made: str) -> None:
    try:
        if made in store:
            store.delete_topic(made)
    except SawlogError as error:
        _logger.warning("could not remove the unfinished topic %s; the next run will: %s", made, error)


class _Repartition:
    """One run: `made` is the name of the new topic until it replaces the old one."""

    def __init__(
        self,
        spark: SparkSession,
        store: DirectoryStore,
        old: DirectoryTopic,
        made: str,
        partitions: int,
        progress: Advance | None,
    ) -> None:
        self._spark, self._store, self._old, self._made = spark, store, old, made
        self._partitions, self._progress = partitions, progress

    def run(self) -> RepartitionReport:
        old, store = self._old, self._store
        before = old.describe()
        now: dict[str, Any] = {name: value for name, value in old.settings.items() if name not in _LATER}
        later: dict[str, Any] = {name: value for name, value in old.settings.items() if name in _LATER}
        store.create_topic(self._made, self._partitions, **now)
        ends = _ends(old)
        self._copy({}, ends)
        with old._partitions.holding(*range(old.partitions)):  # writers wait for their turn
            last = _ends(old)
            followed = self._copy(ends, last) if last != ends else 0
            store.alter_topic(self._made, **later)
            after = store.replace_topic(old.name, self._made, ends=last).describe()
        return RepartitionReport(
            topic=old.name,
            records=after.records,
            size_bytes_before=before.size_bytes,
            size_bytes=after.size_bytes,
            partitions_before=before.partitions,
            partitions=after.partitions,
            followed=followed,
        )

    def _copy(self, start: Ends, end: Ends) -> int:
        """Copy records from `start` to `end` to the new topic in one transaction and return their number."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        with running.one_line_errors():
            rows = self._rows(start, end).observe(seen, F.count(F.lit(1)).alias("records"))
            rows = rows.withColumn("moment", self._moment()).withColumn("target", self._target())
            (
                self._shared_out(rows)
                .select("key", "value", "headers", "timestamp", F.col("target").alias("partition"))
                .write.format("sawlog")
                .mode("append")
                .option("path", self._store.path)
                .option("topic", self._made)
                .save()
            )
            count = int(seen.get["records"])
        if self._progress is not None:
            self._progress(count)
        return count

    def _shared_out(self, rows: DataFrame) -> DataFrame:
        """Give each task the records of some targets, in order; or, with fewer targets than cores, a range of them: the
        store keeps the order of the tasks. Finding ranges means reading everything twice."""
        order, cores = ("moment", "partition", "offset"), self._spark.sparkContext.defaultParallelism
        if self._partitions >= cores:
            return rows.repartition(self._partitions, "target").sortWithinPartitions(*order)
        return rows.repartitionByRange(cores, "target", *order).sortWithinPartitions("target", *order)

    def _rows(self, start: Ends, end: Ends) -> DataFrame:
        reader = self._spark.read.format("sawlog").option("path", self._store.path)
        reader = reader.option("subscribe", self._old.name).option("includeHeaders", "true")
        if start:
            reader = reader.option("startingOffsets", _offsets(self._old.name, start))
        return reader.option("endingOffsets", _offsets(self._old.name, end)).load()

    def _moment(self) -> Column:
        """Return a timestamp that never decreases within a partition: several partitions are merged by it, each in its
        own order."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        if self._old.partitions == 1:
            return F.lit(None).cast("timestamp")
        so_far = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
        return F.max("timestamp").over(so_far)

    def _target(self) -> Column:
        """Return the partition of the key; records without one switch partition in groups, so that all partitions get
        some."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.functions import arrow_udf

        count = self._partitions

        def place(keys: pa.Array) -> pa.Array:
            return pa.array(partitions_for(keys, count, 0), pa.int32())

        of_key: Any = arrow_udf(place, "int")  # type: ignore[call-overload]
        spread = F.pmod(F.col("partition") + F.floor(F.col("offset") / _KEYLESS_RUN), F.lit(count)).cast("int")
        return F.when(F.col("key").isNull(), spread).otherwise(of_key(F.col("key")))


def _ends(topic: DirectoryTopic) -> Ends:
    return {number: offsets.next for number, offsets in topic.offsets().items()}


def _offsets(name: str, ends: Ends) -> str:
    return json.dumps({name: {str(number): offset for number, offset in ends.items()}})
