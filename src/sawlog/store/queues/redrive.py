"""`redrive`: puts dead letters back into their original topics.

A dead letter goes back once: its message is appended to its topic again, marked for the queue of its group (queues of
other groups skip it), and the group `redrive.<group>` commits the progress in the dead-letter topic. Message and
progress are one named transaction, so a crash in between neither loses nor duplicates a message: a second run finds
out what the first one did.

The letters themselves stay where they are until retention or `trim` removes them.

One run at a time per dead-letter topic: a second one gets `DirectoryLocked`.
"""

from __future__ import annotations

import errno
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice

from ...config import checked_count
from ...errors import InvalidConfig, StorageError, TopicNotFound
from ..base import Store, Topic
from ..directory.members import group_directory
from ..directory.store import DirectoryStore
from .message import DeadLetter, redrive_group

#: Letters per transaction.
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Redriven:
    """Letters that were, or would be, put back from one partition for one group."""

    group: str
    #: Target topic.
    topic: str
    #: Partition of the dead-letter topic.
    partition: int
    letters: int


def redrive(
    store: Store,
    dead_letters: str,
    *,
    group: str | None = None,
    to: str | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> list[Redriven]:
    """Put dead letters back into their topics, or all of them into the topic `to`; of one group, or of all. At most
    `limit`, oldest first. With `dry_run` nothing is changed. `progress` is called with the number put back.

    `TopicNotFound`, before anything is changed, if one of the topics does not exist.
    """
    if limit is not None:
        checked_count("limit", limit)
    if not isinstance(store, DirectoryStore):
        raise StorageError(errno.ENOTSUP, f"{store.path} is on object storage: redriving needs a store in a directory")
    topic = store.topic(dead_letters)
    if to == dead_letters:
        raise InvalidConfig(f"dead letters of {dead_letters!r} cannot go back to {to!r} itself")
    if dry_run:
        return _plan(store, topic, group, to, limit)[0]
    with _alone(store, dead_letters):
        rows, plan = _plan(store, topic, group, to, limit)
        for each, partition, count in plan:
            _put_back(store, topic, partition, each, to, count, progress)
    return rows


@contextmanager
def _alone(store: DirectoryStore, dead_letters: str) -> Iterator[None]:
    """Allow one run at a time. The kernel releases the lock of a process that dies."""
    with closing(group_directory(store._directory, redrive_group(dead_letters), create=True)) as directory:
        held = directory.lock("redrive", alone=False)
        try:
            yield
        finally:
            held.release()


def _plan(
    store: DirectoryStore, topic: Topic, group: str | None, to: str | None, limit: int | None
) -> tuple[list[Redriven], list[tuple[str, int, int]]]:
    """Return what to put back, as rows for display and as (group, partition, count)."""
    found: Counter[tuple[str, str, int]] = Counter()
    rest = limit
    plan: list[tuple[str, int, int]] = []
    for partition in range(topic.partitions):
        for each in sorted(_groups(topic, partition)) if group is None else [group]:
            reached = _reached(store, topic, partition, each)
            letters = list(islice(_letters(topic, partition, each, reached), rest))
            if letters:
                plan.append((each, partition, len(letters)))
                found.update((each, to or letter.topic, partition) for letter in letters)
                rest = None if rest is None else rest - len(letters)
            if rest == 0:
                break
        if rest == 0:
            break
    for name in {name for _, name, _ in found}:
        _check_target(store, name, topic.name)
    rows = [Redriven(each, name, partition, count) for (each, name, partition), count in sorted(found.items())]
    return rows, plan


def _check_target(store: DirectoryStore, name: str, dead_letters: str) -> None:
    try:
        store.topic(name)
    except TopicNotFound as error:
        raise TopicNotFound(f"dead letters of {dead_letters!r} would go to {name!r}, which does not exist") from error


def _groups(topic: Topic, partition: int) -> set[str]:
    letters = (DeadLetter.of(record) for record in topic.partition(partition).scan())
    return {letter.group for letter in letters if letter is not None}


def _letters(topic: Topic, partition: int, group: str, reached: int) -> Iterator[DeadLetter]:
    log = topic.partition(partition)
    for record in log.scan(max(reached, log.lowest_offset)):
        letter = DeadLetter.of(record)
        if letter is not None and letter.group == group:
            yield letter


def _name(topic: Topic, partition: int, group: str) -> str:
    return f"redrive.{topic.id}.{partition}.{hashlib.sha256(group.encode()).hexdigest()[:32]}"


def _reached(store: DirectoryStore, topic: Topic, partition: int, group: str) -> int:
    """Return the first offset that was not put back. Usually it is committed; after a crash the last transaction knows
    more, and bisection finds it."""
    committed = store.groups.committed(redrive_group(group)).get((topic.name, partition))
    low = committed.offset if committed is not None and committed.topic_id == topic.id else 0
    high = max(topic.partition(partition).visible_offset, low)
    while low < high:
        middle = (low + high + 1) // 2
        if _is_stored(store, _name(topic, partition, group), middle):
            low = middle
        else:
            high = middle - 1
    return low


def _is_stored(store: DirectoryStore, name: str, sequence: int) -> bool:
    if store.mode == "r":
        return False  # a dry run of a store that cannot be written to
    transaction = store.transaction(name, sequence)
    try:
        return transaction.replayed
    finally:
        transaction.abort()


def _put_back(
    store: DirectoryStore,
    topic: Topic,
    partition: int,
    group: str,
    to: str | None,
    count: int,
    progress: Callable[[int], None],
) -> None:
    reached = _reached(store, topic, partition, group)
    letters = islice(_letters(topic, partition, group, reached), count)
    while chunk := list(islice(letters, _CHUNK)):
        end = chunk[-1].record.offset + 1
        with store.transaction(_name(topic, partition, group), end) as transaction:
            for letter in chunk:
                transaction.append_many(to or letter.topic, [letter.revived()])
        store.groups.commit(redrive_group(group), {(topic.name, partition): end})
        progress(len(chunk))
