"""Retention after a commit: nobody else would do it in a store that only Spark writes to.

A process that keeps a store open does its upkeep in the background; a commit opens it briefly. So a commit checks the
partitions that it has written to, and drops what exceeds their age or size limit. That is fast: nothing is read.
Compaction, merging and recompression take longer than a micro-batch should wait: they are left to `sawlog upkeep`, or
to a process that has the store open.

Publishing, next to the driver: the store's `Staging` places what the tasks staged, all or nothing.

A batch job is one transaction. A micro-batch is a transaction with a name and a number (the query's id, the batch's):
if Spark repeats it, because it crashed between our commit and the record in its own checkpoint, the number is already
known and nothing is placed again (see replays.py). Spark may also call `abort` for a micro-batch that was just
published; so nothing is removed without checking whether an intent or the query's note refers to it.

Partitions are locked only while their batches are placed, and for retention: nobody else would do that in a store that
only Spark writes to (see tending.py).

A store is created only with the option createStore: a path that is mistyped, or not mounted, is an error.

Replays: micro-batches and named batches that were stored before, and are not stored again.

A replay has the same name, a number that is not above the last one, and the same sink: the topic in the option `topic`,
by its id, or the topics of a column, whichever these are. The sink is part of the name in the store, because one name
may be used for several writes: a `foreachBatch` that writes two topics under one txnAppId, as in Delta's documentation;
a checkpoint that was copied for a second job with another sink, and with it the query's id. So the store has one record
per name and sink, which every batch overwrites.

**A replay must be a repetition.** Spark repeats only the last micro-batch, from the same offsets. If the repetition has
other rows than the stored batch, the checkpoint does not match the sink (it was restored from a backup, or edited), and
skipping the batch would lose records. So these are errors (`ReplayMismatch`), unless `replayCheck` is `off`:

- a different number of records for a topic;
- for a stream: a number below the last one, which Spark never repeats;
- with `replayCheck=content`: the same number of records with other keys or values. By default that is a warning: a
  query that is not deterministic, such as one with uuid(), computes different values each time.

Version 0.2 used the name alone. Its record is looked up as well, so that a query that is upgraded between a commit and
Spark's own record of it does not store that micro-batch twice.

Every replay is logged and counted.
"""

from __future__ import annotations

import errno
import hashlib
import logging
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
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
from . import places
from .options import ReplayCheck, Where, WriteOptions

if TYPE_CHECKING:
    from .writing import Staged, StagedPart


_logger = logging.getLogger("sawlog.spark")


def tend(store: Store, written: Iterable[tuple[str, int]]) -> None:
    """Drop what exceeds the limits of these partitions. What was written is stored, whatever happens here."""
    for name, number in written:
        try:
            report = store.expire(name, number)
        except DirectoryLocked:
            continue  # the process that keeps it open does its upkeep
        except SawlogError as error:
            _logger.warning("retention in partition %d of %r is postponed to the next commit: %s", number, name, error)
        else:
            if report is not None and report.removed_records:
                _logger.info("partition %d of %r: %s", number, name, report)


#: More bytes than this go into a file next to the intent.
_INTENT_BYTES = 1 << 20
#: After this many micro-batches, and after the first, a query removes what dead queries have left.
_FORGET_EVERY = 100


def stage_name(query: str, batch: int) -> str:
    """Where the tasks of a micro-batch stage. The same for a repetition, which removes what the first try left."""
    return f"spark{query.replace('-', '')}-{batch}"


def open_store(where: Where) -> Store:
    """The store for writing, without upkeep: that is for long-running processes. It must exist."""
    try:
        places.open_for_task(where).close()
    except StoreNotFound as error:
        raise StoreNotFound(
            errno.ENOENT,
            f'no store in {where}. Is the path right, and is it mounted? .option("createStore", "true") creates '
            "a store there",
        ) from error
    return places.open_store(where, "w")


def prepare(options: WriteOptions, columns: Sequence[str]) -> None:
    """Before anything is written: check that the store and the topic exist, or create them if the options say so.
    Topics of a column are checked by the tasks that find them."""
    if options.topic is None and "topic" not in columns:
        raise InvalidConfig('no topic: give .option("topic", NAME), or a column topic')
    if options.create_store:
        places.open_store(options.where, "w").close()
    with open_store(options.where) as store:
        if options.topic is not None and options.topic not in store:
            make_topic(store, options.topic, options)


def make_topic(store: Store, name: str, options: WriteOptions) -> None:
    """Create a topic that is missing, if the options say so."""
    if options.partitions is None:
        raise InvalidConfig(
            f'no topic {name!r} in {options.path}; create it first, or with .option("partitions", NUMBER)'
        )
    try:
        store.create_topic(name, options.partitions)
    except TopicExists:
        pass  # another task was first


def publish(
    options: WriteOptions, stage: str, staged: Iterable[Staged], *, name: str | None = None, sequence: int | None = None
) -> None:
    """Place everything that was staged, once. `ReplayMismatch` if it was stored before with different rows."""
    messages = list(staged)
    found = [part for message in messages for part in message.parts]
    with open_store(options.where) as store:
        try:
            if name is not None and sequence is not None:
                repeated = Repeated(name, sequence, _topic_id(store, options, found), options.replay_check)
                of_stream = any(message.query is not None for message in messages)
                if _is_replay(store, options, stage, repeated, found, of_stream=of_stream):
                    return
                name = repeated.transaction_name
            parts, data = _gathered(store, stage, found)
            timeout_s = options.lock_timeout_s
            placed = store.staging.publish(
                stage, parts, data=data, name=name, sequence=sequence, lock_timeout_s=timeout_s
            )
        except DirectoryLocked as error:
            raise DirectoryLocked(
                error.path,
                f"{error.holder}; timed out after {options.lock_timeout_s:.0f} s waiting for it (option lockTimeout). "
                "Nothing was stored. Close the writer there",
            ) from error
        tend(store, placed)
        if sequence is not None and sequence % _FORGET_EVERY == 0:
            store.staging.forget_names()


def _topic_id(store: Store, options: WriteOptions, found: Sequence[StagedPart]) -> str | None:
    """The topic of the options, as the tasks found it; None if rows go to the topics of a column."""
    if options.topic is None:
        return None
    return found[0].topic_id if found else store.topic(options.topic).id


def _is_replay(
    store: Store,
    options: WriteOptions,
    stage: str,
    repeated: Repeated,
    found: Sequence[StagedPart],
    *,
    of_stream: bool,
) -> bool:
    """Whether it was stored before; then what was staged now is removed. Waits for a commit in progress, by a driver
    that died."""
    staging = store.staging
    done = staging.replay_of(
        stage,
        lambda: repeated.stored(staging, {part.topic_id for part in found}),
        lock_timeout_s=options.lock_timeout_s,
    )
    if done is None:
        return False
    repeated.check(done, [_part(each) for each in found], of_stream=of_stream)
    return True


def _gathered(store: Store, stage: str, found: Sequence[StagedPart]) -> tuple[list[Part], bytes]:
    """What the tasks staged, and what came with their messages: for the intent, or, if it is large, in a file."""
    data = b"".join(each.data for each in found)
    file = ""
    if len(data) > _INTENT_BYTES:
        file = store.staging.put(stage, data)
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


def _part(staged: StagedPart, pieces: tuple[Piece, ...] = ()) -> Part:
    return Part(staged.topic, staged.topic_id, staged.partition, staged.count, pieces, digest=staged.digest)


def discard(options: WriteOptions, stage: str) -> None:
    """Remove what was staged and not published."""
    with open_store(options.where) as store:
        store.staging.discard(stage)


#: A longer quoted name is replaced by its hash, so that the sink fits into a file's name.
_LONGEST_NAME = 120
#: The sink of a job that routes by the column topic.
_COLUMN = "column"


class Skips:
    """The number of batches that this process has skipped as replays."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, name: str, sequence: int, done: Intent, *, note: str = "") -> None:
        """Count one, and log it."""
        self.count += 1
        topics = ", ".join(sorted({repr(part.topic) for part in done.parts}))
        if not topics:  # what an earlier version has stored is not known
            topics = "any topic: it had no rows" if done.id else "the same topics"
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
SKIPS = Skips()


@dataclass(frozen=True, slots=True)
class Repeated:
    """A batch that may be a replay."""

    #: The query's id or the txnAppId.
    name: str
    sequence: int
    #: None: rows go to the topics of a column.
    topic_id: str | None
    check_by: ReplayCheck = "counts"

    @property
    def transaction_name(self) -> str:
        """The name of its transaction in the store."""
        short = self.name if len(quoted(self.name)) <= _LONGEST_NAME else _sha256(self.name)
        return f"{short}-{_COLUMN if self.topic_id is None else _sha256(self.topic_id)[:16]}"

    def stored(self, staging: JobStaging, targets: AbstractSet[str]) -> Intent | None:
        """What was stored under that name, with this number or a later one; None if nothing."""
        check_name(self.name, self.sequence)
        last = staging.last(self.transaction_name)
        if last is not None and _number(last) >= self.sequence:
            return last
        old = staging.last(self.name)
        targets = targets or {self.topic_id or ""}
        if old is not None and _number(old) >= self.sequence and targets & {part.topic_id for part in old.parts}:
            return old
        return None

    def check(self, done: Intent, parts: Sequence[Part], *, of_stream: bool) -> None:
        """Report a replay; `ReplayMismatch` if it does not repeat what is stored."""
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
        SKIPS.report(self.name, self.sequence, done, note=note)

    def _mismatch(self, why: str) -> ReplayMismatch:
        return ReplayMismatch(
            f"batch {self.sequence} of {self.name!r} was stored before, {why} Nothing was stored now. "
            "If the checkpoint was restored, copied or edited, it does not match this sink: start the query with a new "
            "checkpointLocation, and with startingOffsets after the records that are already stored. If several "
            "writes share this txnAppId, give each its own. If the stored batch is right, because the query is not "
            'deterministic, skip this one: .option("replayCheck", "off")'
        )


def _digests(parts: Sequence[Part]) -> dict[str, int]:
    """The digest of the rows for each topic, where it is known."""
    found: dict[str, int] = {}
    for part in parts:
        found[part.topic_id] = (found.get(part.topic_id, 0) + part.digest) % DIGESTS
    return {topic: digest for topic, digest in found.items() if digest}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _number(intent: Intent) -> int:
    return -1 if intent.sequence is None else intent.sequence
