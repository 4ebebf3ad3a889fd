"""`Consumer`: reads topics from where its group has got to, and shares them with the group's other members.

```python
with store.consumer("billing", ["orders"]) as consumer:
    for record in consumer:            # waits for new ones
        work(record)                   # committed every few seconds, and at the end of the block
```

*At least once.* An offset is committed when the record before it was processed: a record that was handed out counts as
processed when the next one is asked for, or when `commit` is called. After a crash, the records behind the last commit
come again. Leaving the block by an exception commits without the record in hand, because that was not processed; so
does `close` while an exception is on its way, or from another thread. With `poll` all records of the last call are
in hand.

*Members.* Partitions are shared evenly between the members of a group, in this process and in others of the machine.
When one joins, leaves or dies, the others notice within a moment, give up or take partitions, and go on where the one
before had committed. How that is kept safe is said in `members`. A member that does not ask for records for
`max_poll_interval_ms`, or whose process was stopped for `session_timeout_ms`, loses its partitions to the others; its
next call raises `GroupFenced`. The call after that joins again.

*Positions.* A group without a committed offset begins at `start`. That is decided once, for all partitions of a topic,
by the first member; a partition that is added to the topic later, or a topic that is deleted and made anew, is read
from its beginning. If the records at a position are gone because the log starts later now (retention, `trim`),
`on_lost` says where to go on. A position carries the leader epoch in which it was read. If the log has lost its end
since, or was truncated, and the position lies beyond the end of its epoch, it goes back to that end, whatever `on_lost`
is, so that no record that took a reused offset is skipped; `on_lost="error"` raises `PositionLost` as well. Each time
it says so in the log `sawlog.topics.consumer`, and `positions_lost` counts it. Damage in a log is raised
(`CorruptBatch`) and not passed over; `seek` goes on behind it.

Without a group (None) a consumer reads all partitions for itself and commits nothing.

Threads: one reads; `close` and everything that only looks may come from any. Records are made by the kernel's cursors
while the caller iterates; a thread in the background sends the heartbeats, watches the group, and interrupts a cursor
when there is something to be done between two records.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Literal, get_args

from ..batch.kernel import Record, RecordCursor
from ..errors import (
    DirectoryLocked,
    GroupError,
    GroupFenced,
    InvalidConfig,
    LogClosed,
    OffsetOutOfRange,
    PositionLost,
    ReadOnlyLog,
    StorageError,
    TopicNotFound,
)
from ..log.log import Log
from ..log.write import background
from ..storage import Lock
from ..storage.forking import forkable
from .assignment import Share, assign
from .groups import Committed, Place, checked_position, now_ms, resolve
from .members import Members, Membership, check_group_name, give_up, group_directory

if TYPE_CHECKING:
    from .groups import Turn
    from .store import Store
    from .topic import Topic

OnLost = Literal["earliest", "latest", "error"]

_log = logging.getLogger(__name__)

#: The background looks after a consumer so often; more often if its session is short.
_BEAT_S = 0.25
#: How often topics are looked at for new partitions.
_TOPICS_S = 2.0
#: Without records, it looks again after this long; doubled while nothing comes.
_PAUSE_S, _PAUSE_MOST_S = 0.001, 0.05
#: Looking in vain takes at most one part in so many of the time, however many partitions there are.
_PATIENCE = 20
#: How often a position that seems to be gone is looked for again, and after how long.
_RETRIES, _DOUBT_S = 10, 0.002


class _Owned:
    """One partition that this consumer reads."""

    def __init__(self, topic: Topic, partition: int, log: Log, held: Lock | None, position: int, epoch: int) -> None:
        self.share: Share = (topic.name, partition)
        self.topic_id = topic.id
        self.log = log
        #: The lock that makes it ours; None without a group.
        self.held = held
        #: After the last record of the cursors before this one, and the leader epoch in which that was read; -1:
        #: unknown.
        self.position = position
        self.epoch = epoch
        #: What the group has committed, as far as this consumer knows.
        self.committed: int | None = None
        #: The cursor that records come from now, and those that follow it up to `end`.
        self.cursor: RecordCursor | None = None
        self._rest: Iterator[RecordCursor] | None = None
        #: Where those cursors end, and the leader epoch of the log when that was its end.
        self._end = 0, -1

    @property
    def reached(self) -> int:
        """Behind the last record that was handed out."""
        cursor = self.cursor
        return self.position if cursor is None else max(self.position, int(cursor.following))

    def next_cursor(self, end: int, epoch: int) -> RecordCursor | None:
        """The cursor to go on with; None if there is nothing below `end`. `epoch` is that of the log when it ended
        there. `OffsetOutOfRange` if the position is not of the history that is there now."""
        while self.cursor is None:
            if self._rest is None:
                if self.position >= end:
                    return None
                self._rest, self._end = self.log.cursors(self.position, end), (end, epoch)
            try:
                found = next(self._rest, None)
                self._enter(self._end[1] if found is None else int(found.leader_epoch))
            except BaseException:
                self._rest = None
                raise
            if found is None:
                self._rest, self.position = None, max(self.position, self._end[0])
            self.cursor = found
        return self.cursor

    def _enter(self, epoch: int) -> None:
        """What comes next was appended in this leader epoch: everything before it has to be of the same history."""
        if epoch > self.epoch:
            if self.is_beyond:
                raise OffsetOutOfRange(
                    self.position, self.log.lowest_offset, self.log.epoch_end(self.epoch), self.log.path
                )
            self.epoch = epoch

    @property
    def is_beyond(self) -> bool:
        """Whether the log has lost its end, or was truncated, below the position."""
        return self.position > self.log.epoch_end(self.epoch)

    def drained(self) -> None:
        """The cursor has ended; or it was stopped, and those behind it are not next any more."""
        cursor = self.cursor
        if cursor is not None:
            self.position = self.reached
            self.cursor = None
            if cursor.stopped:
                self._rest = None

    def move(self, position: int, epoch: int) -> None:
        """Go on elsewhere."""
        cursor, self.cursor, self._rest = self.cursor, None, None
        self.position, self.epoch = position, epoch
        if cursor is not None:
            cursor.stop()


class Consumer:
    """Reads topics as a member of a group. Made by `Store.consumer`."""

    def __init__(
        self,
        store: Store,
        group: str | None,
        topics: Iterable[str],
        *,
        start: Place = "earliest",
        on_lost: OnLost = "earliest",
        auto_commit_ms: int | None = 5000,
        session_timeout_ms: int = 10_000,
        max_poll_interval_ms: int = 300_000,
        member: str | None = None,
    ) -> None:
        self._store = store
        self._group = group if group is None else check_group_name(group)
        self._names = _checked_topics(topics)
        self._start = _checked_start(start)
        if on_lost not in get_args(OnLost):
            raise InvalidConfig(f'on_lost is "earliest", "latest" or "error", not {on_lost!r}')
        self._on_lost = on_lost
        if auto_commit_ms is not None:
            _check_ms("auto_commit_ms", auto_commit_ms)
        self._auto_commit_s = None if auto_commit_ms is None or group is None else auto_commit_ms / 1000
        self._session_timeout_ms = _check_ms("session_timeout_ms", session_timeout_ms)
        self._max_poll_s = _check_ms("max_poll_interval_ms", max_poll_interval_ms) / 1000
        self._member_name = member or ""
        if group is not None and store.mode == "r":
            raise ReadOnlyLog(
                f'the store {store.path} was opened with mode="r": a group commits; consume without one (None)'
            )
        self._offsets = store.groups.offsets

        #: Held while partitions come, go and are committed; never while the store is asked for topics.
        self._lock = forkable(threading.RLock())
        #: Set when it is closed; also wakes up who waits for records.
        self._ended = forkable(threading.Event())
        self._owned: dict[Share, _Owned] = {}
        #: The order in which partitions are asked for records.
        self._round: deque[Share] = deque()
        self._topics: dict[str, Topic] = {}
        self._topics_due_s = 0.0
        #: The names that the store was last asked for: those of all members.
        self._asked_for: set[str] = set()
        #: Without a group: the topics that were begun to be read.
        self._begun: set[str] = set()
        self._commit_due_s = time.monotonic() + (self._auto_commit_s or 0.0)

        #: Which thread reads; whose cursor it iterates over now; the positions before its last `poll`.
        self._thread = threading.get_ident()
        self._given: _Owned | None = None
        self._before: dict[Share, int] | None = None
        #: How often a position was not there any more.
        self.positions_lost = 0
        #: Partitions that have gone back, and whoever reads was told by an error: not committed before it goes on.
        self._unsure: set[Share] = set()

        self._members: Members | None = None
        self._membership: Membership | None = None
        #: Held by the background while it looks: its files are not closed meanwhile.
        self._ticking = forkable(threading.Lock())
        self._ailing = False
        #: When records were last asked for; the last offset that the background saw.
        self._asked_s = time.monotonic()
        self._last_seen = -1
        #: The group as it was when partitions were last shared out, and whether it has changed since.
        self._view: _View | None = None
        self._stirred = True
        #: Whether there are partitions that it should own and somebody else has not given up yet.
        self._wanting = False

        try:
            self._look_for_topics(missing_ok=False)
            with self._lock:
                self._share_out()
        except BaseException:
            self._release()
            raise
        if self._group is not None:
            background.every(min(_BEAT_S, session_timeout_ms / 5000), self._tick)

    # --- reading

    def __iter__(self) -> Iterator[Record]:
        """Records as they come, without end; until `close`."""
        return chain.from_iterable(self._feed(drain=False))

    def drain(self) -> Iterator[Record]:
        """Records up to where each partition that it owns ended when it was first looked at."""
        return chain.from_iterable(self._feed(drain=True))

    def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[Record]:
        """The next records, as soon as there are any; at most so many, and an empty list after `timeout_s`."""
        if max_records < 1:
            raise InvalidConfig(f"max_records must be at least 1, not {max_records}")
        deadline = time.monotonic() + timeout_s
        tries = 0
        self._check_open()
        while True:
            looked = time.monotonic()
            self._go_on()
            records = self._collect(max_records)
            now = time.monotonic()
            rest = deadline - now
            if records or rest <= 0 or self._ended.wait(min(_pause_s(tries, now - looked), rest)):
                return records
            tries += 1

    def _collect(self, most: int) -> list[Record]:
        """At most so many of the records that are there now."""
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
            if not records:  # else these come first; what is wrong is still wrong at the next call
                raise
        except BaseException:  # interrupted: nobody gets these, so they come again
            for share, position in (self._before or {}).items():
                if (mine := self._owned.get(share)) is not None:
                    mine.move(position, mine.epoch)
            raise
        return records

    def _feed(self, *, drain: bool) -> Iterator[RecordCursor]:
        """One cursor after the other; when the next is asked for, all records of those before are processed."""
        ends: dict[Share, int] | None = {} if drain else None
        tries = 0
        self._check_open()
        while True:
            looked = time.monotonic()
            self._go_on()
            found = None if self._ended.is_set() else self._next_cursor(ends)
            if found is not None:
                owned, cursor = found
                self._before, self._given = None, owned
                yield cursor
                owned.drained()
                tries = 0
            elif drain or self._ended.wait(_pause_s(tries, time.monotonic() - looked)):
                return
            else:
                tries += 1

    def _next_cursor(self, ends: dict[Share, int] | None) -> tuple[_Owned, RecordCursor] | None:
        """The next partition in the round that has records, with a cursor over some of them."""
        order = self._round  # swapped, not changed, when another thread closes the consumer
        for _ in range(len(order)):
            share = order[0]
            order.rotate(-1)
            owned = self._owned.get(share)
            if owned is None:
                continue
            try:
                cursor = owned.cursor or self._find(owned, ends)
                if cursor is not None:
                    return owned, cursor
            except (LogClosed, StorageError, TopicNotFound):
                if self._ended.is_set():
                    return None
                self._look_for_topics()
                with self._lock:
                    self._drop_strangers()
                if share in self._owned:
                    raise
        return None

    def _find(self, owned: _Owned, ends: dict[Share, int] | None) -> RecordCursor | None:
        lost: OffsetOutOfRange | None = None
        for _ in range(_RETRIES):
            end, epoch = owned.log.position()
            if owned.position < owned.log.lowest_offset or owned.is_beyond:
                self._look_again(owned)
                continue
            if ends is not None:
                end = min(ends.setdefault(owned.share, end), end)
            try:
                return owned.next_cursor(end, epoch)
            except OffsetOutOfRange as error:
                lost = error  # trimmed or truncated since we looked; look again
        raise lost or OffsetOutOfRange(owned.position, owned.log.lowest_offset, end, owned.log.path)

    def _look_again(self, owned: _Owned) -> None:
        """Its position seems to be gone. Before that is believed, give a writer that is just replacing files the time
        to be done: a position that moves is hard to take back."""
        for _ in range(_RETRIES):
            time.sleep(_DOUBT_S)
            owned.log.position()
            if owned.position >= owned.log.lowest_offset and not owned.is_beyond:
                return
        if owned.is_beyond and owned.epoch >= 0:
            self._go_back(owned)
        else:  # without an epoch nobody can say from where on records are others now
            self._lose(owned)

    def _go_back(self, owned: _Owned) -> None:
        """What was read last is not in the log any more: go on where that history ended, whatever `on_lost` says."""
        topic, partition = owned.share
        now, reached = owned.log.leader_epoch, owned.position
        end = owned.log.epoch_end(owned.epoch)
        self.positions_lost += 1
        owned.move(end, now)
        owned.committed = None
        what = (
            f"partition {partition} of {topic!r} was read up to offset {reached}, and has lost its records from offset "
            f"{end} on since then (a power cut, or truncate); newer records may have the same offsets"
        )
        if self._on_lost == "error":
            self._unsure.add(owned.share)
            raise PositionLost(f"{what}. The next call goes on at offset {end}")
        _log.warning("%s; going on at offset %d", what, end)

    def _lose(self, owned: _Owned) -> None:
        """The records at its position are gone: do what `on_lost` says."""
        topic, partition = owned.share
        end, epoch = owned.log.position()
        lowest = owned.log.lowest_offset
        what = f"offset {owned.position} of partition {partition} of {topic!r} is gone: it holds {lowest} to {end - 1}"
        self.positions_lost += 1
        if self._on_lost == "error":
            raise PositionLost(f"{what}; seek to go on")
        _log.warning("%s; going on at the %s", what, "first" if self._on_lost == "earliest" else "end")
        owned.move(lowest if self._on_lost == "earliest" else end, epoch)

    # --- between two records

    def _go_on(self) -> None:
        """Everything that was handed out is processed: commit if it is time, and see to the group."""
        self._given = self._before = None
        self._unsure.clear()
        self._thread = threading.get_ident()
        now = self._asked_s = time.monotonic()
        if now >= self._topics_due_s:
            self._look_for_topics()
        with self._lock:
            if self._ended.is_set():
                return
            self._check_member(thorough=self._stirred)
            try:
                if self._auto_commit_s is not None and now >= self._commit_due_s:
                    self._commit_due_s = now + self._auto_commit_s
                    self._commit(self._reached())
                if self._stirred:
                    self._share_out()
            except DirectoryLocked as error:
                _log.warning("the groups of %s are locked; trying again: %s", self._store.path, error)
        self._before = self._reached()

    def _look_for_topics(self, *, missing_ok: bool = True) -> None:
        """Ask the store for the topics of all members: more partitions, deleted, made anew."""
        found: dict[str, Topic] = {}
        view = self._view
        self._asked_for = {*self._names, *(view.topics if view is not None else ())}
        for name in sorted(self._asked_for):
            try:
                found[name] = self._store.topic(name)
            except TopicNotFound:
                if not missing_ok and name in self._names:
                    raise
                if name in self._topics:
                    _log.warning("the topic %r is gone; its partitions are not read any more", name)
            except LogClosed:
                if not self._ended.is_set():
                    raise
                return
        self._topics = found
        self._topics_due_s = time.monotonic() + _TOPICS_S
        self._stirred = True

    def _tick(self) -> None:
        """The background's turn: say that all is well, look at the others."""
        with self._ticking:
            membership, members = self._membership, self._members
            if self._ended.is_set() or membership is None or members is None:
                return
            try:
                now = time.monotonic()
                given = self._given
                cursor = None if given is None else given.cursor
                if cursor is not None and cursor.following != self._last_seen:
                    self._last_seen, self._asked_s = cursor.following, now
                if now - self._asked_s <= self._max_poll_s:
                    membership.beat()
                view = self._view
                owners = None if view is None or self._wanting else view.owners
                if not membership.current or _View.of(members, owners) != view:
                    self._stirred = True
                due = self._auto_commit_s is not None and now >= self._commit_due_s
                if cursor is not None and (self._stirred or due or now >= self._topics_due_s):
                    cursor.stop()
                self._ailing = False
            except Exception:  # the thread serves everyone in the process
                if not self._ailing:  # said once, not four times a second
                    _log.exception("looking after a consumer of %r failed", self._group)
                self._ailing = True

    # --- the group

    def _share_out(self) -> None:
        """Own what this member should own, as far as it is free. The caller holds the lock."""
        self._stirred = False
        self._drop_strangers()
        if self._group is None:
            self._take_everything()
            return
        if self._membership is None or self._members is None:
            self._join(self._group)
        assert self._membership is not None
        assert self._members is not None
        members, me = self._members, self._membership.id
        self._membership.beat()
        view = self._view = _View.of(members)
        if view.silent - {me}:
            view = self._view = self._fence_silent(members, me)
        if not view.topics <= self._asked_for:
            self._topics_due_s = 0.0  # somebody joined who reads others as well: they count when work is shared out
        owners = {share: id for share, id in view.owners.items() if id in view.subscriptions and id != me}
        owners.update(dict.fromkeys(self._owned, me))
        partitions = [(topic.name, n) for topic in self._topics.values() for n in range(topic.partitions)]
        mine = assign({**view.subscriptions, me: self._names}, partitions, owners)[me]
        self._give_up([share for share in self._owned if share not in mine])
        self._take(members, me, [share for share in mine if share not in owners])
        self._wanting = len(self._owned) < len(mine)

    def _join(self, group: str) -> None:
        with self._offsets.turn():
            with self._ticking:
                if self._members is not None:  # the group may have been deleted, and its directory be another one now
                    self._members.directory.close()
                self._members = Members(group_directory(self._store.directory, group, create=True))
            self._membership = self._members.join(self._member_name, self._names, self._session_timeout_ms)

    def _fence_silent(self, members: Members, me: str) -> _View:
        with self._offsets.turn():
            for member in members.look().values():
                if member.id != me and members.is_silent(member) and members.fence(member):
                    who = member.name or member.process
                    _log.warning("%s was silent for too long and is out of the group %r", who, self._group)
        return _View.of(members)

    def _take_everything(self) -> None:
        """Without a group: all partitions."""
        for topic in self._topics.values():
            start = "earliest" if topic.name in self._begun else self._start
            self._begun.add(topic.name)
            for number in range(topic.partitions):
                if (topic.name, number) not in self._owned:
                    log = topic.partition(number)
                    epoch = log.leader_epoch
                    self._add(_Owned(topic, number, log, None, resolve(log, start), epoch))

    def _take(self, members: Members, me: str, shares: Sequence[Share]) -> None:
        """Become the owner of partitions that are free, and find out where to go on."""
        assert self._group is not None
        if not shares:
            return
        topics = {name: self._topics[name] for name, _ in shares}
        try:
            logs = {share: topics[share[0]].partition(share[1]) for share in sorted(shares)}
        except TopicNotFound:
            self._topics_due_s = 0.0  # deleted since we looked
            return
        with self._offsets.turn() as turn:
            found = turn.offsets(self._group)
            committed = {
                share: (each.offset, each.leader_epoch)
                for share, each in found.items()
                if share[0] in topics and each.topic_id == topics[share[0]].id
            }
            for name in topics.keys() - {name for name, _ in found}:
                if self._start != "earliest":
                    committed.update(self._begin(turn, topics[name]))
            for share, log in logs.items():
                held = members.take(share, me)
                if held is not None:
                    epoch = log.leader_epoch
                    found_at = committed.get(share)
                    at, epoch = (resolve(log, "earliest"), epoch) if found_at is None else found_at
                    owned = _Owned(topics[share[0]], share[1], log, held, at, epoch)
                    owned.committed = None if found_at is None else at
                    self._add(owned)

    def _begin(self, turn: Turn, topic: Topic) -> dict[Share, tuple[int, int]]:
        """The group's first look at a topic: write down where it starts, so that whoever comes next, and after
        whatever, goes on from there and not from another "latest"."""
        assert self._group is not None
        places: dict[Share, tuple[int, int]] = {}
        for number in range(topic.partitions):
            log = topic.partition(number)
            epoch = log.leader_epoch
            places[topic.name, number] = resolve(log, self._start), epoch
        turn.write(self._group, {share: self._committed(topic.id, *place) for share, place in places.items()})
        return places

    def _committed(self, topic_id: str, offset: int, epoch: int) -> Committed:
        member = self._membership.id if self._membership is not None else ""
        return Committed(offset, topic_id, "", now_ms(), member, epoch)

    def _add(self, owned: _Owned) -> None:
        self._owned[owned.share] = owned
        self._round.appendleft(owned.share)

    def _remove(self, share: Share) -> None:
        owned = self._owned.pop(share)
        self._round = deque(each for each in self._round if each != share)
        if owned.cursor is not None:
            owned.cursor.stop()
        if owned.held is not None:
            give_up(owned.held)

    def _give_up(self, shares: Sequence[Share]) -> None:
        """Let others have partitions, after everything was committed."""
        if shares and self._auto_commit_s is not None:
            self._commit({share: self._owned[share].reached for share in shares if share not in self._unsure})
        for share in shares:
            self._remove(share)

    def _drop_strangers(self) -> None:
        """Let go of partitions whose topic is gone, or was made anew."""
        for share, owned in list(self._owned.items()):
            topic = self._topics.get(share[0])
            if topic is None or topic.id != owned.topic_id:
                self._remove(share)

    def _check_member(self, *, thorough: bool = True) -> None:
        """Raise if the others have taken us for dead; the next call joins again. The caller holds the lock.

        Only with `thorough` the lock of every partition is looked at: whoever fenced us may have died before it was
        done.
        """
        if self._group is None:
            return
        if self._membership is None:
            self._stirred = True  # fenced, and told so: join again
            return
        held = [owned.held for owned in self._owned.values() if owned.held is not None and thorough]
        if self._membership.current and all(lock.current for lock in held):
            return
        self._let_go()
        raise GroupFenced(
            f"this member of the group {self._group!r} was silent for more than {self._session_timeout_ms} ms and was "
            "taken for dead: others have its partitions, and go on from the last commit. The next call joins again"
        )

    def _let_go(self) -> None:
        for share in list(self._owned):
            self._remove(share)
        membership, self._membership = self._membership, None
        self._given = self._before = None
        if membership is not None:
            membership.leave()

    # --- committing

    def _reached(self) -> dict[Share, int]:
        return {share: owned.reached for share, owned in list(self._owned.items())}

    def _processed(self) -> dict[Share, int]:
        """Positions without what the caller has in hand."""
        given, before = self._given, self._before
        made = self._reached()
        if given is not None:
            if given.share in made and given.cursor is not None and given.reached > given.position:
                made[given.share] = given.reached - 1
        elif before is not None:
            made.update((share, before[share]) for share in made.keys() & before.keys())
        return made

    def commit(self, positions: Mapping[Share, int] | None = None) -> None:
        """Commit everything that was handed out, or these positions: {(topic, partition): next offset to read}.

        Durable when it returns. `GroupFenced` if the partitions went to another member; then nothing was written.
        """
        with self._lock:
            self._check_open()
            if self._group is None:
                raise GroupError("a consumer without a group has nothing to commit to")
            self._check_member()
            wanted = self._reached() if positions is None else dict(positions)
            for share, offset in wanted.items():
                self._mine(*share)
                checked_position(offset)
            self._commit(wanted)

    def _commit(self, positions: Mapping[Share, int]) -> None:
        """Write down what has changed, if all of it is still ours. The caller holds the lock."""
        assert self._group is not None
        changed = {share: offset for share, offset in positions.items() if self._owned[share].committed != offset}
        if not changed:
            return
        with self._offsets.turn() as turn:
            self._check_member()
            turn.write(self._group, {share: self._read_so_far(self._owned[share], at) for share, at in changed.items()})
        for share, offset in changed.items():
            self._owned[share].committed = offset

    def _read_so_far(self, owned: _Owned, offset: int) -> Committed:
        """An offset with the leader epoch that it belongs to: what was not read here is taken to be of now."""
        epoch = owned.epoch if offset <= owned.reached else owned.log.leader_epoch
        return self._committed(owned.topic_id, offset, epoch)

    # --- looking and moving

    @property
    def assignment(self) -> set[Share]:
        """The partitions that it reads now: {(topic, partition)}."""
        return set(self._owned)

    def _mine(self, topic: str, partition: int) -> _Owned:
        owned = self._owned.get((topic, partition))
        if owned is None:
            raise GroupError(f"partition {partition} of {topic!r} is not assigned to this consumer")
        return owned

    def position(self, topic: str, partition: int) -> int:
        """The offset behind the last record that was handed out."""
        return self._mine(topic, partition).reached

    def committed(self, topic: str, partition: int) -> int | None:
        """What the group has committed, by whichever member; None if nothing."""
        if self._group is None:
            return None
        found = self._offsets.of(self._group).get((topic, partition))
        known = self._topics.get(topic)
        return None if found is None or (known is not None and known.id != found.topic_id) else found.offset

    def lag(self) -> dict[Share, int]:
        """How many records behind its position each partition has."""
        return {
            share: max(owned.log.visible_offset - max(owned.reached, owned.log.lowest_offset), 0)
            for share, owned in list(self._owned.items())
        }

    def seek(self, topic: str, partition: int, place: Place) -> None:
        """Go on at an offset, "earliest", "latest", or the first record that is not older than a datetime."""
        with self._lock:
            self._check_open()
            owned = self._mine(topic, partition)
            epoch = owned.log.leader_epoch
            owned.move(resolve(owned.log, place), epoch)

    # --- closing

    def close(self) -> None:
        """Commit what was processed (see above), and leave the group. Safe to call twice, and from any thread."""
        failing = sys.exc_info()[0] is not None
        self._close(everything=self._thread == threading.get_ident() and not failing, quiet=failing)

    def _close(self, *, everything: bool, quiet: bool) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            try:
                if self._auto_commit_s is not None and self._membership is not None:
                    self._check_member()
                    reached = self._reached() if everything else self._processed()
                    self._commit({share: at for share, at in reached.items() if share not in self._unsure})
            except Exception:
                if not quiet:
                    raise
                _log.exception("the last commit of a consumer of %r failed", self._group)
            finally:
                self._release()

    def _release(self) -> None:
        self._ended.set()
        with ExitStack() as last:  # each step happens, whatever the others raise
            with self._ticking:  # the background is not looking, and will not
                members, self._members = self._members, None
            if members is not None:
                last.callback(members.directory.close)
            last.callback(self._let_go)

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise LogClosed("the consumer is closed")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(everything=kind is None, quiet=kind is not None)

    def __del__(self) -> None:
        """Forgotten without `close`: the partitions are free for others, nothing more is committed."""
        if hasattr(self, "_stirred") and not self._ended.is_set():
            self._release()

    def __repr__(self) -> str:
        state = "closed" if self._ended.is_set() else f"partitions {sorted(self._owned)}"
        return f"<Consumer {self._group!r} of {', '.join(self._names)}: {state}>"


def _pause_s(tries: int, cost_s: float) -> float:
    """How long to wait after so many looks in vain, the last of which took so long."""
    return max(min(_PAUSE_S * (1 << min(tries, 10)), _PAUSE_MOST_S), cost_s * _PATIENCE)


@dataclass(frozen=True, slots=True)
class _View:
    """What a member sees of its group; equal if nothing has changed that matters for sharing out."""

    subscriptions: dict[str, tuple[str, ...]]
    silent: frozenset[str]
    owners: dict[Share, str]

    @classmethod
    def of(cls, members: Members, owners: dict[Share, str] | None = None) -> _View:
        """As it is now; the owners, if they are given, are not looked at."""
        found = members.look()
        silent = frozenset(id for id, each in found.items() if members.is_silent(each))
        owners = members.owners() if owners is None else owners
        return cls({id: each.topics for id, each in found.items()}, silent, owners)

    @property
    def topics(self) -> set[str]:
        """All topics that anybody reads."""
        return {topic for topics in self.subscriptions.values() for topic in topics}


def _checked_topics(topics: Iterable[str]) -> tuple[str, ...]:
    made = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not made or not all(isinstance(name, str) for name in made):
        raise InvalidConfig(f"a consumer reads one or more topics, given by name, not {made!r}")
    return made


def _checked_start(start: Place) -> Place:
    if start in ("earliest", "latest") or isinstance(start, datetime):
        return start
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise InvalidConfig(f'start is "earliest", "latest", an offset or a datetime, not {start!r}')


def _check_ms(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfig(f"{name} is a number of milliseconds from 1 on, not {value!r}")
    return value
