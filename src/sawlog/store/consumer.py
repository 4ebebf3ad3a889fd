"""`Consumer`: reads topics from the committed offsets of its group. The members of the group share the partitions.

```python
with store.consumer("billing", ["orders"]) as consumer:
    for record in consumer:            # waits for new ones
        work(record)                   # committed every few seconds, and at the end of the block
```

*At least once.* An offset is committed when the record before it was processed: a record that was returned counts as
processed when the next one is requested, or when `commit` is called. After a crash, the records after the last commit
are read again. Leaving the block by an exception commits without the current record, because that was not processed; so
does `close` during an exception, or from another thread. With `poll` all records of the last call are current.

*Members.* Partitions are shared evenly between the members of a group, in this process and in others of the machine.
When one joins, leaves or dies, the others notice shortly, release or take partitions, and continue where the previous
owner had committed. `sawlog.store.directory.members` explains why that is safe. A member that does not request records
for `max_poll_interval_ms`, or whose process was stopped for `session_timeout_ms`, loses its partitions to the others;
its next call raises `GroupFenced`. The call after that joins again.

*Positions.* A group without a committed offset begins at `start`. That is decided once, for all partitions of a topic,
by the first member; a partition that is added to the topic later, or a topic that is deleted and recreated, is read
from its beginning. If the records at a position are gone because the log now starts later (retention, `trim`),
`on_lost` says where to continue. A position has the leader epoch in which it was read. If the log has lost its end
since, or was truncated, and the position is beyond the end of its epoch, it goes back to that end, whatever `on_lost`
is, so that no record at a reused offset is skipped; `on_lost="error"` raises `PositionLost` as well. Each time this is
logged in `sawlog.store.consumer`, and counted in `positions_lost`. Damage in a log is raised (`CorruptBatch`) and not
skipped; use `seek` to continue after it.

*Rebalancing.* `on_assigned` is called with the partitions that it has got, before their first record is returned;
`on_revoked` with those that it is about to give up, when everything returned is processed: it may still commit. Both
run in the thread that reads, or closes. Partitions of an expired session are gone already, and are not reported.
`pause` keeps partitions assigned but reads nothing of them until `resume`.

*Transactions.* A consumer sees no record of a Kafka transaction that was aborted, and waits where one is open
(`Log.last_stable_offset`): Kafka calls this read_committed, and its own default is the other one. With
`isolation="uncommitted"` it sees everything at once. `start="latest"` is where everything is decided.

Without a group (None) a consumer reads all partitions alone and commits nothing.

Threads: one reads; `close` and all read-only calls may come from any. Records are made by the kernel's cursors while
the caller iterates; a background thread sends the heartbeats, watches the group, and interrupts a cursor when there is
something to do between two records.

Two other modules do the rest: `membership` the group, `position` the positions and the topics. Each guards its own
state; the consumer calls them in turn.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from types import TracebackType

from .. import background
from ..batch.kernel import Record, RecordCursor
from ..clock import Deadline, PollBackoff
from ..closing import OneShotEvent
from ..config import Isolation, is_committed
from ..errors import (
    DirectoryLocked,
    GroupError,
    GroupFenced,
    InvalidConfig,
    LogClosed,
    ReadOnlyLog,
    StorageError,
    TopicNotFound,
)
from ..storage.forking import forkable
from .base import Partition, Store, Topic, TopicPartition, sleep_until_growth
from .groups import Committed, StartPosition, checked_position, resolve
from .membership import GroupMembership, MemberOptions
from .names import check_group_name
from .options import checked_ms, checked_start, checked_topics
from .position import ConsumerPosition, OnLost, PartitionPosition, TopicWatch, checked_on_lost

_logger = logging.getLogger("sawlog.store.consumer")

#: Interval of a consumer's background checks; shorter if its session is short.
_BEAT_S = 0.25

#: Called with partitions.
OnPartitions = Callable[[set[TopicPartition]], None]


class Consumer:
    """Reads topics as a member of a group. Created by `Store.consumer`."""

    def __init__(
        self,
        store: Store,
        group: str | None,
        topics: Iterable[str],
        *,
        start: StartPosition,
        on_lost: OnLost,
        auto_commit_ms: int | None,
        session_timeout_ms: int,
        max_poll_interval_ms: int,
        member: str | None,
        isolation: Isolation,
        on_assigned: OnPartitions | None,
        on_revoked: OnPartitions | None,
    ) -> None:
        group = group if group is None else check_group_name(group)
        names = checked_topics(topics)
        self._start = checked_start(start)
        checked_on_lost(on_lost)
        is_committed(isolation)
        self._isolation: Isolation = isolation
        if auto_commit_ms is not None:
            checked_ms("auto_commit_ms", auto_commit_ms)
        self._auto_commit_s = None if auto_commit_ms is None or group is None else auto_commit_ms / 1000
        checked_ms("session_timeout_ms", session_timeout_ms)
        max_poll_s = checked_ms("max_poll_interval_ms", max_poll_interval_ms) / 1000
        if group is not None and store.mode == "r":
            raise ReadOnlyLog(
                f'the store {store.path} was opened with mode="r", and a group commits: consume without a group (None)'
            )
        self._path = store.path

        #: Held while partitions are added, removed and committed; never while the store is asked for topics.
        self._lock = forkable(threading.RLock())
        #: Set on close; also wakes a thread that waits for records.
        self._ended = forkable(OneShotEvent())
        #: True if all partitions and the membership are released.
        self._released = False
        #: The thread that reads.
        self._thread = threading.get_ident()
        #: When to commit next; never without automatic commits.
        self._commit_due = Deadline(self._auto_commit_s)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        #: Newly assigned partitions that `on_assigned` has not been called for.
        self._unreported: set[TopicPartition] = set()
        #: Without a group: the topics whose reading has begun.
        self._begun: set[str] = set()

        self._watch = TopicWatch(store.topic, names)
        self._position = ConsumerPosition(on_lost)
        #: None without a group.
        self._membership: GroupMembership | None = None
        if group is not None:
            options = MemberOptions(group, member or "", names, session_timeout_ms, max_poll_s)
            self._membership = store.groups._membership(options)

        try:
            self._look_for_topics(missing_ok=False)
            with self._lock:
                self._rebalance()
        except BaseException:
            self._release()
            raise
        if self._membership is not None:
            background.every(min(_BEAT_S, session_timeout_ms / 5000), self._tick)

    # --- reading

    def __iter__(self) -> Iterator[Record]:
        """Yield records as they arrive, blocking, until `close`."""
        return chain.from_iterable(self._waiting_feed())

    def drain(self) -> Iterator[Record]:
        """Yield records up to the end that each owned partition had when it was first read."""
        return chain.from_iterable(cursor for cursor in self._feed(drain=True) if cursor is not None)

    def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[Record]:
        """Return up to `max_records` records as soon as there are any; an empty list after `timeout_s`."""
        if max_records < 1:
            raise InvalidConfig(f"max_records must be at least 1, not {max_records}")
        deadline, pauses = Deadline(timeout_s), PollBackoff()
        self._check_open()
        while True:
            pauses.look()
            self._go_on()
            self._position.begin_poll()
            records = self._collect(max_records)
            if records or deadline.passed or self._sleep(deadline.at_most(pauses.next_s())):
                return records

    def _collect(self, most: int) -> list[Record]:
        """Return up to `most` of the records that are available now."""
        records: list[Record] = []
        try:
            while len(records) < most:
                found = self._next_cursor(None)
                if found is None:
                    break
                owned, cursor = found
                records += islice(cursor, most - len(records))
                if len(records) < most:
                    owned.drained()
        except Exception:
            if not records:  # else these come first; the next call raises the error
                raise
        except BaseException:  # interrupted: the caller never got these, so they are read again
            self._position.take_back()
            raise
        return records

    def _waiting_feed(self) -> Iterator[RecordCursor]:
        """Like `_feed`, but block where there is nothing new."""
        pauses = PollBackoff()
        pauses.look()
        for cursor in self._feed():
            if cursor is not None:
                yield cursor
                pauses.found()
            elif self._sleep(pauses.next_s()):
                return
            pauses.look()

    def _sleep(self, seconds: float) -> bool:
        """Sleep until there may be more records, for at most `seconds`; return whether the consumer was closed."""
        sleep_until_growth((owned.log for owned in self._position.in_turn()), seconds)
        return self._ended.is_set()

    def _feed(self, *, drain: bool = False) -> Iterator[RecordCursor | None]:
        """For callers with their own event loop: yield one cursor after the other, and None where there is nothing new.
        Requesting the next one marks all records of the previous ones as processed. Ends when the consumer is closed;
        with `drain`, at the end that each owned partition had when it was first read."""
        ends: dict[TopicPartition, int] | None = {} if drain else None
        self._check_open()
        while True:
            self._go_on()
            found = None if self._ended.is_set() else self._next_cursor(ends)
            if found is not None:
                owned, cursor = found
                self._position.hand_out(owned)
                yield cursor
                owned.drained()
            elif drain or self._ended.is_set():
                return
            else:
                yield None

    def _next_cursor(self, ends: dict[TopicPartition, int] | None) -> tuple[PartitionPosition, RecordCursor] | None:
        """Return the next partition in the round that has records, with a cursor over some of them."""
        for owned in self._position.in_turn():
            try:
                cursor = self._position.cursor(owned, ends)
                if cursor is not None:
                    return owned, cursor
            except (LogClosed, StorageError, TopicNotFound):
                if self._ended.is_set():
                    return None
                self._look_for_topics()
                with self._lock:
                    self._drop_deleted()
                if owned.topic_partition in self._position:
                    raise
        return None

    # --- between two records

    @property
    def _is_due(self) -> bool:
        """True if `_go_on` has slow work to do: commit, or look up topics and the group."""
        return self._must_rebalance or self._watch.due.passed or self._commit_due.passed

    def _go_on(self) -> None:
        """Mark everything returned so far as processed, commit if it is time, and check the group."""
        self._position.all_processed()
        self._thread = threading.get_ident()
        if self._membership is not None:
            self._membership.asked()
        if self._watch.due.passed:
            self._look_for_topics()
        with self._lock:
            if self._ended.is_set():
                return
            self._check_member(thorough=self._must_rebalance)
            try:
                if self._commit_due.passed:
                    self._commit_due = Deadline(self._auto_commit_s)
                    self._commit(self._position.reached())
                if self._must_rebalance:
                    self._rebalance()
            except DirectoryLocked as error:
                _logger.warning("the groups of %s are locked; trying again: %s", self._path, error)
        self._report_assigned()

    def _report_assigned(self) -> None:
        """Report newly assigned partitions."""
        if not self._unreported:
            return
        news, self._unreported = self._unreported & self._position.partitions(), set()
        if news and self._on_assigned is not None:
            self._on_assigned(news)

    @property
    def _must_rebalance(self) -> bool:
        """True if partitions must be assigned again."""
        return self._watch.changed or (self._membership is not None and self._membership.must_rebalance)

    def _look_for_topics(self, *, missing_ok: bool = True) -> None:
        """Look up the topics of all members."""
        others = () if self._membership is None else self._membership.topics
        try:
            self._watch.look(others, missing_ok=missing_ok)
        except LogClosed:
            if not self._ended.is_set():
                raise

    def _tick(self) -> None:
        """Send a heartbeat, and interrupt the iterating thread if there is something to do. Called by the background
        thread."""
        membership, cursor = self._membership, self._position.in_hand
        if membership is None or self._ended.is_set():
            return
        well = membership.tick(None if cursor is None else int(cursor.next_offset))
        if well and cursor is not None and (self._must_rebalance or self._commit_due.passed or self._watch.due.passed):
            cursor.stop()

    # --- the group

    def _rebalance(self) -> None:
        """Take the partitions that this member should own, as far as they are free. The caller holds the lock."""
        self._watch.note_assignment()
        self._drop_deleted()
        if self._membership is None:
            self._take_everything()
            return
        mine, free = self._membership.rebalance(self._watch.partitions())
        if not self._watch.covers(self._membership.topics):
            self._watch.look_soon()  # a member that reads other topics has joined: they count in the assignment
        self._give_up([partition for partition in self._position.partitions() if partition not in mine])
        self._take(self._membership, free)

    def _take_everything(self) -> None:
        """Read all partitions: there is no group."""
        for topic in self._watch:
            start = "earliest" if topic.name in self._begun else self._start
            self._begun.add(topic.name)
            for number in range(topic.partitions):
                if (topic.name, number) not in self._position:
                    self._begin(topic, number, topic.partition(number), start=start)

    def _take(self, membership: GroupMembership, partitions: Sequence[TopicPartition]) -> None:
        """Take free partitions and find out where to continue."""
        if not partitions:
            return
        topics = {topic.name: topic for topic in self._watch if topic.name in {name for name, _ in partitions}}
        try:
            logs = {partition: topics[partition[0]].partition(partition[1]) for partition in sorted(partitions)}
        except TopicNotFound:
            self._watch.look_soon()  # deleted meanwhile
            return
        left = membership.take(list(logs), topics, self._start)
        try:
            for partition in list(left):
                self._begin(topics[partition[0]], partition[1], logs[partition], committed=left[partition])
                del left[partition]
        except BaseException:
            membership.give_up(left)
            raise

    def _begin(
        self,
        topic: Topic,
        number: int,
        log: Partition,
        *,
        start: StartPosition = "earliest",
        committed: tuple[int, int] | None = None,
    ) -> None:
        """Read a partition from the committed offset (with its leader epoch), else from `start`."""
        epoch = log.leader_epoch  # before its end is read: that may belong to a later one
        at, epoch = (resolve(log, start), epoch) if committed is None else committed
        known = None if committed is None else at
        self._position.add(PartitionPosition(topic, number, log, at, epoch, committed=known, isolation=self._isolation))
        self._unreported.add((topic.name, number))

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit and release partitions."""
        self._report_revoked(partitions)
        if partitions and self._auto_commit_s is not None:
            reached = self._position.reached()
            self._commit(self._position.sure({partition: reached[partition] for partition in partitions}))
        self._remove(partitions)

    def _report_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Call `on_revoked` for partitions that are about to be released; it may still commit."""
        told = set(partitions) - self._unreported
        if told and self._on_revoked is not None:
            self._on_revoked(told)

    def _remove(self, partitions: Sequence[TopicPartition]) -> None:
        self._position.remove(partitions)
        if self._membership is not None and partitions:
            self._membership.give_up(partitions)

    def _drop_deleted(self) -> None:
        """Release partitions whose topic is deleted or was recreated."""
        gone: list[TopicPartition] = []
        for owned in self._position:
            topic = self._watch.get(owned.topic_partition[0])
            if topic is None or topic.id != owned.topic_id:
                gone.append(owned.topic_partition)
        self._remove(gone)

    def _check_member(self, *, thorough: bool = True) -> None:
        """Raise if the session has expired; the next call joins again. The caller holds the lock."""
        if self._membership is None:
            return
        try:
            self._membership.check(thorough=thorough)
        except GroupFenced:
            self._position.clear()
            self._membership.leave()
            raise

    # --- committing

    def commit(self, positions: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit everything that was returned, or these positions: {(topic, partition): next offset to read}.

        Durable when it returns. `GroupFenced` if the partitions went to another member; then nothing was written.
        """
        with self._lock:
            self._check_open()
            if self._membership is None:
                raise GroupError("a consumer without a group has nothing to commit to")
            self._check_member()
            wanted = self._position.reached() if positions is None else dict(positions)
            for partition, offset in wanted.items():
                self._mine(*partition)
                checked_position(offset)
            self._commit(wanted)

    def _commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit positions that have changed, if this member still owns all of them. The caller holds the lock."""
        membership, changed = self._membership, self._position.changed(positions)
        if not changed or membership is None:
            return
        try:
            membership.commit(
                {partition: self._read_so_far(membership, partition, at) for partition, at in changed.items()}
            )
        except GroupFenced:
            self._position.clear()
            membership.leave()
            raise membership._fenced() from None
        self._position.note_committed(changed)

    def _read_so_far(self, membership: GroupMembership, partition: TopicPartition, offset: int) -> Committed:
        owned = self._mine(*partition)
        return Committed.by_member(membership.id, owned.topic_id, offset, owned.epoch_of(offset))

    # --- inspecting and moving

    @property
    def _is_closed(self) -> bool:
        """True if the consumer is closed."""
        return self._ended.is_set()

    @property
    def _logs(self) -> list[Partition]:
        """Partitions that it reads now."""
        return [owned.log for owned in self._position]

    @property
    def _group(self) -> str | None:
        return None if self._membership is None else self._membership.group

    @property
    def assignment(self) -> set[TopicPartition]:
        """Partitions that it reads now: {(topic, partition)}."""
        return self._position.partitions()

    @property
    def positions_lost(self) -> int:
        """Number of times a position was no longer in the log."""
        return self._position.lost_count

    def _mine(self, topic: str, partition: int) -> PartitionPosition:
        owned = self._position.get((topic, partition))
        if owned is None:
            raise GroupError(f"partition {partition} of {topic!r} is not assigned to this consumer")
        return owned

    def position(self, topic: str, partition: int) -> int:
        """Return the offset after the last record that was returned."""
        return self._mine(topic, partition).reached

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the offset that the group has committed, by any member; None if there is none."""
        if self._membership is None:
            return None
        found = self._membership.committed().get((topic, partition))
        known = self._watch.get(topic)
        return None if found is None or (known is not None and known.id != found.topic_id) else found.offset

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of records of each partition that have not been returned yet."""
        return {owned.topic_partition: owned.lag for owned in self._position}

    def seek(self, topic: str, partition: int, place: StartPosition) -> None:
        """Continue at an offset, "earliest", "latest", or the first record that is not older than a datetime."""
        with self._lock:
            self._check_open()
            owned = self._mine(topic, partition)
            epoch = owned.log.leader_epoch
            owned.move(resolve(owned.log, place), epoch)

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop reading these partitions until `resume`; they stay assigned. Without arguments, all of them."""
        with self._lock:
            self._check_open()
            assigned = [self._mine(*each).topic_partition for each in partitions]
            for partition in assigned or self._position.partitions():
                self._position.pause(partition)

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume reading these partitions where they were paused; without arguments, all paused partitions."""
        with self._lock:
            self._check_open()
            for partition in partitions or self._position.paused:
                self._position.resume(partition)

    @property
    def paused(self) -> set[TopicPartition]:
        """Paused partitions."""
        return self._position.paused

    # --- closing

    def close(self) -> None:
        """Commit processed records (see the module docstring) and leave the group. Safe to call twice, from any
        thread."""
        failing = sys.exc_info()[0] is not None
        self._finish(everything=self._thread == threading.get_ident() and not failing, quiet=failing)

    def _finish(self, *, everything: bool, quiet: bool) -> None:
        """Close the consumer. With `everything`, the current record counts as processed; with `quiet`, an error of the
        last commit is logged instead of raised."""
        with self._lock:
            if self._ended.is_set():
                if not self._released:  # an interrupt has prevented it
                    self._release()
                return
            try:
                self._report_revoked(self._position.partitions())
                if self._auto_commit_s is not None and self._membership is not None and self._membership.id:
                    self._check_member()
                    reached = self._position.reached() if everything else self._position.processed()
                    self._commit(self._position.sure(reached))
            except Exception:
                if not quiet:
                    raise
                _logger.exception("the last commit of a consumer of %r failed", self._group)
            finally:
                self._release()

    def _release(self, *, dropped: bool = False) -> None:
        self._ended.set()
        with ExitStack() as last:  # run both, even if one raises
            if self._membership is not None:
                last.callback(self._membership.abandon if dropped else self._membership.close)
            last.callback(self._position.clear)
        self._released = True

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise LogClosed("the consumer is closed")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(everything=kind is None, quiet=kind is not None)

    def __del__(self) -> None:
        """Release the partitions of a consumer that was dropped without `close`. Commits nothing."""
        if hasattr(self, "_membership") and not self._released:
            self._release(dropped=True)

    def __repr__(self) -> str:
        state = "closed" if self._ended.is_set() else f"partitions {sorted(self._position.partitions())}"
        return f"<Consumer {self._group!r} of {', '.join(self._watch.names)}: {state}>"
