"""Replays: micro-batches and named batches that were stored before, and are not stored again.

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

import hashlib
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ..errors import ReplayMismatch
from ..topics.base import JobStaging
from ..topics.names import quoted
from ..topics.transactions.staging import DIGESTS, Intent, Part, check_name, records_by_topic, stored_and_now
from .options import ReplayCheck

_logger = logging.getLogger("sawlog.spark")

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
