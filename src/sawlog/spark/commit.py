"""Publish the output of a Spark job: commit staged batches, detect replays, enforce retention.

The code runs in a Python process beside the driver. A batch job is one transaction: the store's `Staging` places the
batches that the tasks staged, all or nothing. A micro-batch is a transaction with a name and a sequence number (the
query's id, the batch's id). If Spark crashes between this commit and the entry in its own checkpoint, it repeats the
micro-batch; the sequence number is already known and nothing is placed twice. Spark may also call `abort` for a
micro-batch that was just published, so nothing is removed before checking that neither an intent nor the query's commit
record refers to it.

Partitions are locked only while their batches are placed and while retention runs. A store is created only with the
option createStore: a mistyped or unmounted path is an error.

**Replays.** A replay has the same name, a number not above the last one, and the same sink: the topic of the option
`topic`, by id, or the topics of a column, whichever they are. The sink is part of the transaction's name because one
name may serve several writes: a `foreachBatch` that writes two topics under one txnAppId, as in Delta's documentation,
or a checkpoint copied, with its query id, for a second job with another sink. So the store keeps one record per name
and sink, and every batch overwrites it.

A replay must repeat the stored batch. Spark repeats only the last micro-batch, from the same offsets. If the repetition
has other rows, the checkpoint does not match the sink (it was restored from a backup, or edited), and skipping the
batch would lose records. These cases raise `ReplayMismatch`, unless `replayCheck` is `off`:

- a different number of records for a topic;
- for a stream: a number below the last one, which Spark never repeats;
- with `replayCheck=content`: the same number of records with other keys or values. By default that is a warning: a
  query that is not deterministic, such as one with uuid(), computes different values each time.

Every replay is logged and counted.

**Retention.** A process that keeps a store open maintains it in the background; a commit opens it only briefly, and a
store that only Spark writes to has no such process. So a commit drops the segments beyond the age or size limit of the
partitions it wrote to. That is fast: no record is read. Compaction, merging and recompression would delay a micro-batch
too long: `sawlog maintenance` does them, or a process that keeps the store open.
"""

from __future__ import annotations

import errno
import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import DirectoryLocked, InvalidConfig, ReplayMismatch, SawlogError, StoreNotFound, TopicExists
from ..store.base import JobStaging, Store
from ..store.directory.transactions.staging import (
    DIGESTS,
    Intent,
    Part,
    Piece,
    check_name,
    records_by_topic,
    stored_and_now,
)
from ..store.names import quoted
from ..store.opening import open_existing
from . import subscription
from .options import ReplayCheck, StoreLocation, WriteOptions

if TYPE_CHECKING:
    from .writing import StagedPartition, TaskCommit


_logger = logging.getLogger("sawlog.spark")


def enforce_retention(store: Store, written: Iterable[tuple[str, int]]) -> None:
    """Drop the segments beyond the limits of these partitions. Failures are logged: the commit itself has succeeded."""
    for name, number in written:
        try:
            report = store._expire(name, number)
        except DirectoryLocked:
            continue  # the process that holds the lock does the maintenance
        except SawlogError as error:
            _logger.warning("retention in partition %d of %r is postponed to the next commit: %s", number, name, error)
        else:
            if report is not None and report.removed_records:
                _logger.info("partition %d of %r: %s", number, name, report)


#: Inline data above this size goes into a file next to the intent.
_INTENT_BYTES = 1 << 20
#: A query removes the leftovers of dead queries after its first micro-batch and then after every this many.
_FORGET_EVERY = 100


def stage_name(query: str, batch: int) -> str:
    """Return the staging name of a micro-batch. A repetition uses the same name and removes the files of the first
    try."""
    return f"spark{query.replace('-', '')}-{batch}"


def open_store(where: StoreLocation) -> Store:
    """Open an existing store for writing, without background maintenance, which is for long-running processes."""
    try:
        return open_existing(where.path, options=where.options)
    except StoreNotFound as error:
        raise StoreNotFound(
            errno.ENOENT,
            f'no store in {where}. Is the path right, and is it mounted? .option("createStore", "true") creates '
            "a store there",
        ) from error


def prepare(options: WriteOptions, columns: Sequence[str]) -> None:
    """Before anything is written: check that the store and the topic exist, or create them if the options say so. The
    tasks check the topics of a column as they meet them."""
    if options.topic is None and "topic" not in columns:
        raise InvalidConfig('no topic: give .option("topic", NAME), or a column topic')
    with subscription.open_store(options.where, "w") if options.create_store else open_store(options.where) as store:
        if options.topic is not None and options.topic not in store:
            create_missing_topic(store, options.topic, options)


def create_missing_topic(store: Store, name: str, options: WriteOptions) -> None:
    """Create a topic that is missing, if the options say so."""
    if options.partitions is None:
        raise InvalidConfig(
            f'no topic {name!r} in {options.where}; create it first, or with .option("partitions", NUMBER)'
        )
    try:
        store.create_topic(name, options.partitions)
    except TopicExists:
        pass  # another task was first


def publish(
    options: WriteOptions,
    stage: str,
    staged: Iterable[TaskCommit],
    *,
    name: str | None = None,
    sequence: int | None = None,
) -> None:
    """Place everything that was staged, exactly once. Raises `ReplayMismatch` if it was stored before with different
    rows."""
    messages = list(staged)
    found = [part for message in messages for part in message.parts]
    with open_store(options.where) as store:
        try:
            if name is not None and sequence is not None:
                repeated = ReplayCandidate(name, sequence, _topic_id(store, options, found), options.replay_check)
                of_stream = any(message.query is not None for message in messages)
                if _is_replay(store, options, stage, repeated, found, of_stream=of_stream):
                    return
                name = repeated.transaction_name
            parts, data = _collect_parts(store, stage, found)
            timeout_s = options.lock_timeout_s
            placed = store._staging.publish(
                stage, parts, data=data, name=name, sequence=sequence, lock_timeout_s=timeout_s
            )
        except DirectoryLocked as error:
            raise DirectoryLocked(
                error.path,
                f"{error.holder}; timed out after {options.lock_timeout_s:.0f} s waiting for it (option lockTimeout). "
                "Nothing was stored. Close the writer there",
            ) from error
        enforce_retention(store, placed)
        if sequence is not None and sequence % _FORGET_EVERY == 0:
            store._staging.forget_names()


def _topic_id(store: Store, options: WriteOptions, found: Sequence[StagedPartition]) -> str | None:
    """The id of the options' topic as the tasks saw it; None if a column routes the rows."""
    if options.topic is None:
        return None
    return found[0].topic_id if found else store.topic(options.topic).id


def _is_replay(
    store: Store,
    options: WriteOptions,
    stage: str,
    repeated: ReplayCandidate,
    found: Sequence[StagedPartition],
    *,
    of_stream: bool,
) -> bool:
    """Return whether the batch was stored before; if so, remove the new staged files. Blocks while a commit that a dead
    driver left unfinished completes."""
    staging = store._staging
    done = staging.replay_of(stage, lambda: repeated.stored(staging), lock_timeout_s=options.lock_timeout_s)
    if done is None:
        return False
    repeated.check(done, [_part(each) for each in found], of_stream=of_stream)
    return True


def _collect_parts(store: Store, stage: str, found: Sequence[StagedPartition]) -> tuple[list[Part], bytes]:
    """Collect the staged pieces and the inline data of the tasks. Inline data goes into the intent, or into a file if
    it is large."""
    data = b"".join(each.data for each in found)
    file = ""
    if len(data) > _INTENT_BYTES:
        file = store._staging.put(stage, data)
        data = b""
    parts: list[Part] = []
    position = 0
    for each in found:
        pieces = each.pieces
        if each.data:
            pieces = (*pieces, Piece(file, position, len(each.data)))
            position += len(each.data)
        parts.append(_part(each, pieces))
    return parts, data


def _part(staged: StagedPartition, pieces: tuple[Piece, ...] = ()) -> Part:
    return Part(staged.topic, staged.topic_id, staged.partition, staged.count, pieces, digest=staged.digest)


def discard(options: WriteOptions, stage: str) -> None:
    """Remove staged files that were not published."""
    with open_store(options.where) as store:
        store._staging.discard(stage)


#: A name whose quoted form is longer is replaced by its hash, so that name and sink fit into a file name.
_LONGEST_NAME = 120
#: The sink of a job that routes rows by the column `topic`.
_COLUMN = "column"


class ReplayCounter:
    """Counter of the batches that this process skipped as replays."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, name: str, sequence: int, done: Intent, *, note: str = "") -> None:
        """Count and log one replay."""
        self.count += 1
        topics = ", ".join(sorted({repr(part.topic) for part in done.parts})) or "any topic: it had no rows"
        _logger.warning(
            "batch %d of %r was stored before and is skipped%s; the last one that was stored is %s, in %s "
            "(skipped by this process: %d)",
            sequence,
            name,
            note,
            done.sequence,
            topics,
            self.count,
        )


#: The replays of this process.
REPLAYS = ReplayCounter()


@dataclass(frozen=True, slots=True)
class ReplayCandidate:
    """A named batch that may be a replay."""

    #: The query's id or the txnAppId.
    name: str
    sequence: int
    #: None: a column routes the rows.
    topic_id: str | None
    check_by: ReplayCheck = "counts"

    @property
    def transaction_name(self) -> str:
        """The name of the batch's transaction in the store."""
        short = self.name if len(quoted(self.name)) <= _LONGEST_NAME else _sha256(self.name)
        return f"{short}-{_COLUMN if self.topic_id is None else _sha256(self.topic_id)[:16]}"

    def stored(self, staging: JobStaging) -> Intent | None:
        """Return the stored batch of this name with this number or a later one; None if there is none."""
        check_name(self.name, self.sequence)
        last = staging.last(self.transaction_name)
        return last if last is not None and _number(last) >= self.sequence else None

    def check(self, done: Intent, parts: Sequence[Part], *, of_stream: bool) -> None:
        """Report a replay. Raises `ReplayMismatch` if it does not repeat the stored batch."""
        note = ""
        if self.check_by != "off" and done.id:
            if done.sequence == self.sequence:
                if records_by_topic(done.parts) != records_by_topic(parts):
                    raise self._mismatch(f"with different rows. {stored_and_now(done, parts)}")
                if _digests(done.parts) not in ({}, _digests(parts)):
                    if self.check_by == "content":
                        raise self._mismatch(f"with different keys or values. {stored_and_now(done, parts)}")
                    note = ", although its keys or values differ from the stored ones"
            elif of_stream:
                raise self._mismatch(
                    f"and so were later ones, up to {done.sequence}, which is shown here. "
                    f"{stored_and_now(done, parts)} Spark repeats only its last batch, so the checkpoint is older than "
                    "the sink."
                )
        REPLAYS.report(self.name, self.sequence, done, note=note)

    def _mismatch(self, why: str) -> ReplayMismatch:
        return ReplayMismatch(
            f"batch {self.sequence} of {self.name!r} was stored before, {why} Nothing was stored now. "
            "If the checkpoint was restored, copied or edited, it does not match this sink: start the query with a new "
            "checkpointLocation, and with startingOffsets after the records that are already stored. If several "
            "writes share this txnAppId, give each its own. If the stored batch is right, because the query is not "
            'deterministic, skip this one: .option("replayCheck", "off")'
        )


def _digests(parts: Sequence[Part]) -> dict[str, int]:
    """The digest of the rows of each topic, where known."""
    found: dict[str, int] = {}
    for part in parts:
        found[part.topic_id] = (found.get(part.topic_id, 0) + part.digest) % DIGESTS
    return {topic: digest for topic, digest in found.items() if digest}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _number(intent: Intent) -> int:
    return -1 if intent.sequence is None else intent.sequence
