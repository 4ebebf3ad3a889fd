"""Replays: micro-batches and named batches that were stored before, and are not stored again.

A replay has the same name, a number that is not above the last one, and the same targets: the topics that it writes to.
The targets count because one name may be used for several writes: a `foreachBatch` that writes two topics under one
txnAppId, as in Delta's documentation; a checkpoint that was copied for a second job with another sink, and with it the
query's id. So the name of the transaction in the store contains both. Topics are identified by their ids: what was
stored in a topic that is now deleted is stored again in the new one.

Version 0.2 used the name alone. Its note is looked up as well, so that a query that is upgraded between a commit and
Spark's own record of it does not store that micro-batch twice.

Every replay is logged and counted: skipping what should have been stored would be the worst error of a sink, and nobody
would notice it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Set as AbstractSet

from ..topics.names import quoted
from ..topics.protocols import JobStaging
from ..topics.transactions.staging import Intent, check_name

_logger = logging.getLogger("sawlog.spark")

#: A longer quoted name is replaced by its hash, so that the targets fit into a file's name.
_LONGEST_NAME = 120


class Skips:
    """How often something was not stored because it had been stored before, in this process."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, name: str, sequence: int, done: Intent) -> None:
        """Count one, and log it."""
        self.count += 1
        topics = ", ".join(sorted({repr(part.topic) for part in done.parts}))
        if not topics:  # object storage keeps the number only
            topics = "any topic: it had no rows" if done.id else "the same topics"
        _logger.warning(
            "batch %d of %r was stored before and is skipped; the last one that was stored is %s, in %s "
            "(skipped by this process: %d)",
            sequence,
            name,
            done.sequence,
            topics,
            self.count,
        )


#: The replays of this process.
SKIPS = Skips()


def transaction_name(name: str, targets: AbstractSet[str]) -> str:
    """The name of a transaction in the store: that of a query or a txnAppId, and the ids of the topics."""
    short = name if len(quoted(name)) <= _LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()
    return f"{short}-{hashlib.sha256(' '.join(sorted(targets)).encode()).hexdigest()[:16]}"


def done_before(staging: JobStaging, name: str, sequence: int, targets: AbstractSet[str]) -> Intent | None:
    """What was stored under that name, with this number or a later one, in these topics; None if nothing."""
    check_name(name, sequence)
    last = staging.last(transaction_name(name, targets))
    if last is not None and _number(last) >= sequence:
        return last
    old = staging.last(name)
    if old is not None and _number(old) >= sequence and targets & {part.topic_id for part in old.parts}:
        return old
    return None


def _number(intent: Intent) -> int:
    return -1 if intent.sequence is None else intent.sequence
