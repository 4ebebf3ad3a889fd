"""`rewrite`: a topic with only the last record of each key, or with a different number of partitions.

A new topic is written next to the old one, then replaces it atomically:

```
orders, orders--rewrite-1f0c22ab     the records are read, sorted and written to the new topic
orders locked                        records that arrived meanwhile are copied; no process can write to the topic now
orders                               the new topic gets the name (Store.replace_topic); the old one is deleted
```

Records go to the partition of their key (Kafka's murmur2) and keep key, value, headers and timestamp; records without a
key are distributed evenly. The records of a key keep their order: within a partition by offset; if a key is in several
partitions because partitions were added, these are merged by time.

The new topic counts its offsets from 0 and has its own id, so offsets that consumer groups committed for the old one do
not apply: the groups start like new ones. No other process may hold a partition's lock when the topic is replaced. A
run that crashes leaves the topic unchanged; the next run removes its leftovers and starts again.

**Compacting.** Maintenance with `cleanup.policy=compact` processes one log at a time, keeps offsets and skips the
active segment. `last_only` rewrites the whole topic in parallel and numbers the records from 0. Any topic can be
compacted; its settings do not change. A last record without a value (a tombstone) is dropped if it is older than the
topic's `delete.retention.ms`. All records without a key are kept. Records that arrive meanwhile are copied unchanged.

**Repartitioning.** With an unchanged number of partitions, every record moves to the partition of its key: after
partitions were added to a topic, older records are still where their keys belonged before.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # at module level: Spark inspects the annotations of `place`

from ..clock import now_ms
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

_MARK = "--rewrite-"
#: Records without a key switch to the next partition after this many, so that all partitions get some.
_KEYLESS_RUN = 4096
#: Settings that would change or drop records during the copy: set only when the new topic is complete.
_LATER = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type")
_TOMBSTONES_MS = 86_400_000

Ends = dict[int, int]


@dataclass(frozen=True, slots=True)
class RewriteParams:
    """Parameters of `rewrite`."""

    #: Directory of the store.
    data: str
    topic: str
    #: New number of partitions; None keeps it.
    partitions: int | None = None
    #: Keep only the last record of each key.
    last_only: bool = False
    #: Report how many records `last_only` would drop, without changing anything.
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """A topic before and after."""

    topic: str
    records_before: int
    records: int
    size_bytes_before: int
    size_bytes: int
    partitions_before: int
    partitions: int
    #: Records that arrived during the rewrite and were copied under the lock.
    followed: int


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """The effect of compacting a topic; nothing was changed."""

    topic: str
    #: The topic's cleanup.policy.
    policy: str
    records_before: int
    records: int
    dropped: int


def check_params(params: RewriteParams) -> None:
    """Raise for errors that can be detected without Spark."""
    if _MARK in params.topic:
        raise InvalidConfig(f"{params.topic!r} is left from an unfinished rewrite; rewrite the topic itself")
    running.check_least(params, partitions=1)
    running.check_topic(params.data, params.topic)  # also: a mistyped directory must not become a store


def run(spark: SparkSession, params: RewriteParams, progress: Advance | None = None) -> RewriteReport | RewritePlan:
    """Rewrite the topic. With `dry_run`, return the plan; then no lock is taken and nothing is written."""
    check_params(params)
    name = params.topic
    with DirectoryStore.open(params.data, "r" if params.dry_run else "w", maintenance_interval_s=None) as store:
        old = store.topic(name)
        if params.dry_run:
            before, after = _Rewrite(spark, store, old, name, params, progress).count()
            policy = str(old.settings.get("cleanup.policy", "delete"))
            return RewritePlan(name, policy, before, after, before - after)
        with running.exclusive_directory(Path(store.path) / "pipelines" / f"rewrite-{quoted(name)}"):
            for other in store.topics():
                if other.startswith(f"{name[:220]}{_MARK}"):
                    store.delete_topic(other)  # left by a run that crashed
            _check_unlocked(old)
            made = f"{name[:220]}{_MARK}{uuid.uuid4().hex[:8]}"
            try:
                return _Rewrite(spark, store, old, made, params, progress).run()
            except BaseException:
                _discard(store, made)
                raise


def _check_unlocked(topic: DirectoryTopic) -> None:
    """Fail now, not after an hour, if another process is writing."""
    for number in range(topic.partitions):
        log = topic.partition(number)
        with log._hold():
            pass
        log._release()


def _discard(store: DirectoryStore, made: str) -> None:
    try:
        if made in store:
            store.delete_topic(made)
    except SawlogError as error:
        _logger.warning("could not remove the unfinished topic %s; the next rewrite will: %s", made, error)


class _Rewrite:
    """One rewrite of a topic."""

    def __init__(
        self,
        spark: SparkSession,
        store: DirectoryStore,
        old: DirectoryTopic,
        made: str,
        params: RewriteParams,
        progress: Advance | None,
    ) -> None:
        self._spark, self._store, self._old, self._made = spark, store, old, made
        self._partitions, self._last_only = params.partitions or old.partitions, params.last_only
        self._progress = progress

    def run(self) -> RewriteReport:
        old, store = self._old, self._store
        before = old.describe()
        given = old.settings
        now: dict[str, Any] = {name: value for name, value in given.items() if name not in _LATER}
        later: dict[str, Any] = {name: value for name, value in given.items() if name in _LATER}
        store.create_topic(self._made, self._partitions, **now)
        ends = _ends(old)
        read = self._copy({}, ends, last_only=self._last_only)
        for number in range(old.partitions):
            with old.partition(number)._hold():
                pass  # the store keeps the lock until it is closed
        last = _ends(old)
        followed = self._copy(ends, last, last_only=False) if last != ends else 0
        store.alter_topic(self._made, **later)
        new = store.replace_topic(old.name, self._made, ends=last)
        after = new.describe()
        return RewriteReport(
            topic=new.name,
            records_before=read + followed,
            records=after.records,
            size_bytes_before=before.size_bytes,
            size_bytes=after.size_bytes,
            partitions_before=before.partitions,
            partitions=after.partitions,
            followed=followed,
        )

    def count(self) -> tuple[int, int]:
        """Count all records, and the records to keep."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        with running.one_line_errors():
            rows = self._rows({}, _ends(self._old)).observe(seen, F.count(F.lit(1)).alias("records"))
            kept = _last(rows.withColumn("moment", self._moment()), self._keep_tombstones_ms()).count()
            before = int(seen.get["records"])
        if self._progress is not None:
            self._progress(before)
        return before, kept

    def _copy(self, start: Ends, end: Ends, *, last_only: bool) -> int:
        """Copy records from `start` to `end` to the new topic in one transaction and return how many were read."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        with running.one_line_errors():
            rows = self._rows(start, end).observe(seen, F.count(F.lit(1)).alias("records"))
            rows = rows.withColumn("moment", self._moment())
            if last_only:
                rows = _last(rows, self._keep_tombstones_ms())
            (
                self._shared_out(rows.withColumn("target", self._target()))
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

    def _keep_tombstones_ms(self) -> int:
        kept: Mapping[str, Any] = self._old.settings
        return int(kept.get("delete.retention.ms", _TOMBSTONES_MS))


def _last(rows: DataFrame, keep_tombstones_ms: int) -> DataFrame:
    """Keep the last record of each key, and all without a key. A last one without a value is dropped if it is old
    enough."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    newest = Window.partitionBy("key").orderBy(F.desc("moment"), F.desc("partition"), F.desc("offset"))
    ranked = rows.withColumn("rank", F.when(F.col("key").isNotNull(), F.row_number().over(newest)).otherwise(1))
    since = F.timestamp_millis(F.lit(now_ms() - keep_tombstones_ms))
    wanted = F.col("value").isNotNull() | F.col("key").isNull() | (F.col("timestamp") >= since)
    return ranked.where((F.col("rank") == 1) & wanted).drop("rank")


def _ends(topic: DirectoryTopic) -> Ends:
    return {number: offsets.next for number, offsets in topic.offsets().items()}


def _offsets(name: str, ends: Ends) -> str:
    return json.dumps({name: {str(number): offset for number, offset in ends.items()}})
