"""`Delivery`: one exchange between a worker and the groups' log: it answers for messages and gets new ones, in one
turn.

A turn is exclusive among all processes (`sawlog.log.shared`; on object storage one of two is lost, and begins again),
and what it writes is one append: the committed offset and all pages that have changed, or nothing. So a message is with
one worker at a time, and a crash at any moment leaves the state before the turn or after it.

Which messages are delivered: first those that were delivered or delayed before and are due, in the order of their
offsets, then new ones. A message whose worker died or did not answer is *doubtful*: it may be what killed the worker.
So doubtful ones are not mixed with others, ten at a time after the first delivery, and then one at a time: a message
that kills its workers takes no others with it to the dead letters.

Threads: one at a time.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ...batch.kernel import Record
from ...clock import Pauses, now_ms, pause, rechecks
from ...errors import SawlogError
from ..assignment import Share
from ..base import Partition, Topic
from ..committed_offsets import Committed
from .delivery_state import DOUBTFUL, FREE, LEASED, Book, Entry, runs_of
from .host import QueueBooks, QueueCrew, QueueTurn, TurnLost
from .message import Answer, Message, is_for, not_before_ms
from .options import Terms

_logger = logging.getLogger("sawlog.store.queues")

#: So many messages of a partition may be open; new ones are not delivered before some of them are finished.
MOST_OPEN = 50_000
#: A fetch ends when the values of its messages have this many bytes.
_MOST_BYTES = 16 << 20
#: So many new messages are looked at in one turn, if most of them are delayed.
_MOST_AT_ONCE = 5000
#: So many messages are delivered at once that a worker had before and did not answer for.
_DOUBTFUL_AT_ONCE = 10


#: Messages that are finished, and answers for others.
_Said = tuple[Sequence[Message], Sequence[Answer]]


@dataclass(slots=True)
class Delivered:
    """The result of an exchange."""

    messages: list[Message] = field(default_factory=list)
    #: Messages that were delivered too often, leased to this worker to become dead letters.
    exhausted: list[Message] = field(default_factory=list)
    #: Answers that came too late: others had the message by then.
    late: int = 0
    #: New records that were looked at, delivered or not.
    passed: int = 0


class _Partition:
    """One partition as a queue sees it."""

    def __init__(self, topic: Topic, number: int) -> None:
        self.share: Share = (topic.name, number)
        self.log: Partition = topic.partition(number)
        self.book = Book(topic.id)
        #: What is committed, and the leader epoch in which it was read.
        self.committed: tuple[int, int] | None = None
        #: Where the log ended, and its leader epoch, at the beginning of the turn. What is delivered is below that end,
        #: so that it is of this epoch or an earlier one.
        self.end, self.epoch = 0, -1

    def load(self, found: Committed | None, topic_id: str, pages: dict[int, bytes]) -> None:
        """Take over what the groups' log says."""
        valid = found is not None and found.topic_id == topic_id
        self.committed = (found.offset, found.leader_epoch) if found is not None and valid else None
        base = self.log.lowest_offset if self.committed is None else self.committed[0]
        self.book.load(base, pages)

    def has_new(self) -> bool:
        """Whether there are records after the frontier that may be delivered."""
        return self.log.position()[0] > self.book.frontier and self.book.open_count < MOST_OPEN

    def follow_log(self) -> None:
        """Forget what the log no longer has: retention and trim at its beginning, truncation at its end."""
        if self._is_beyond() and all(self._is_beyond() for _ in rechecks()):
            assert self.committed is not None
            end = self.log.epoch_end(self.committed[1])
            _logger.warning(
                "partition %d of %r has lost its records from offset %d on (a power cut, or truncate); the queue "
                "continues there",
                self.share[1],
                self.share[0],
                end,
            )
            self.book.cut(end)
        self.end, self.epoch = self.log.position()
        lost = self.book.advance(self.log.lowest_offset)
        if lost:
            _logger.warning("%d messages of %s/%d were removed before they were finished", lost, *self.share)

    def _is_beyond(self) -> bool:
        if self.committed is None:
            return False
        self.log.position()
        return self.book.frontier > self.log.epoch_end(self.committed[1])


class Delivery:
    """Exchanges messages and answers with the groups' log."""

    def __init__(
        self,
        offsets: QueueBooks,
        crew: QueueCrew,
        terms: Terms,
        topic_of: Callable[[str], Topic],
        queue_id: object,
    ) -> None:
        self._offsets = offsets
        self._crew = crew
        self._terms = terms
        self._topic_of = topic_of
        #: For its messages: which queue delivers them.
        self._queue_id = queue_id
        self._topic_id = ""
        self._partitions: dict[int, _Partition] = {}
        #: The partition to begin with, so that all get their turn.
        self._next = 0

    # --- looking, without a turn

    def has_work(self) -> bool:
        """Whether an exchange may find messages."""
        try:
            return self._looks_promising(self._known())
        except BaseException:
            self._partitions = {}
            raise

    def _looks_promising(self, partitions: list[_Partition]) -> bool:
        offsets, pages = self._offsets.of(self._terms.group), self._offsets.pages(self._terms.group)
        now = now_ms()
        workers: set[str] = set()
        for each in partitions:
            each.load(offsets.get(each.share), self._topic_id, pages.get(each.share, {}))
            if each.book.due_ms <= now or each.has_new():
                return True
            workers |= each.book.workers
        return bool(self._crew.dead(workers, now=False))

    def _known(self) -> list[_Partition]:
        """The partitions, from the one whose turn it is."""
        topic = self._topic_of(self._terms.topic)
        if topic.id != self._topic_id:
            self._topic_id, self._partitions = topic.id, {}
        for number in range(len(self._partitions), topic.partitions):
            self._partitions[number] = _Partition(topic, number)
        count = len(self._partitions)
        return [self._partitions[(self._next + number) % count] for number in range(count)]

    # --- a turn

    def exchange(self, acked: Sequence[Message], answers: Sequence[Answer], limit: int) -> Delivered:
        """Finish messages, answer for others, and get up to `limit` new ones. All of it is durable when this returns;
        if it raises, nothing has changed."""
        pauses = Pauses()
        while True:
            try:
                topic = self._topic_of(self._terms.topic)
                partitions = self._known()
                with self._offsets.turn() as turn:
                    return self._in_turn(turn, topic, partitions, (acked, answers), limit)
            except TurnLost:
                self._partitions = {}
                pause(pauses.next_s() * random.uniform(0.5, 1.5))  # not in step with the other workers
            except BaseException:
                self._partitions = {}  # they may have changed in memory
                raise

    def _in_turn(
        self, turn: QueueTurn, topic: Topic, partitions: list[_Partition], said: _Said, limit: int
    ) -> Delivered:
        worker, group = self._crew.join(), self._terms.group
        turn.places(group, [topic], self._terms.start, worker)  # commits where a new group begins
        offsets, pages = turn.offsets(group), turn.pages(group)
        for each in partitions:
            each.load(offsets.get(each.share), topic.id, pages.get(each.share, {}))
            each.follow_log()
        made = Delivered(late=self._answer(*said))
        failure: SawlogError | None = None
        if limit > 0:
            try:
                self._deliver(partitions, worker, limit, made)
            except SawlogError as error:  # what was answered, and what was found before it, counts all the same
                failure = error
            self._next += 1
        self._write(turn, topic, partitions, worker)
        if failure is not None and not made.messages:
            raise failure
        return made

    def _write(self, turn: QueueTurn, topic: Topic, partitions: list[_Partition], worker: str) -> None:
        offsets: dict[Share, Committed] = {}
        pages: dict[Share, dict[int, bytes | None]] = {}
        for each in partitions:
            changed = each.book.settle()
            if changed:
                pages[each.share] = changed
            if each.committed != (each.book.base, each.epoch) and (changed or each.committed is not None):
                offsets[each.share] = Committed.by_member(worker, topic.id, each.book.base, each.epoch)
        turn.write_all([(self._terms.group, offsets)], pages={self._terms.group: pages})
        for each in partitions:
            each.book.stored(pages.get(each.share, {}))

    # --- answers

    def _answer(self, acked: Sequence[Message], answers: Sequence[Answer]) -> int:
        """Note answers; returns how many came too late."""
        by_partition: defaultdict[int, list[Message]] = defaultdict(list)
        for message in acked:
            by_partition[message.place[0]].append(message)
        late = 0
        for number, messages in by_partition.items():
            known = self._partitions.get(number)
            late += len(messages) if known is None else known.book.finish_all(messages)
        for answer in answers:
            message = answer.message
            known = self._partitions.get(message.place[0])
            if known is None or not known.book.is_with(message):
                late += 1
            elif answer.what == "done":
                known.book.finish(message.offset)
            elif answer.what == "longer":
                known.book.put(message.offset, Entry(LEASED, message.deliveries, answer.until_ms, message.lease))
            else:
                seen = message.deliveries - (answer.what == "unseen")
                known.book.put(message.offset, Entry(FREE, seen, answer.until_ms, ""))
        return late

    # --- messages

    def _deliver(self, partitions: list[_Partition], worker: str, limit: int, made: Delivered) -> None:
        now = now_ms()
        until = now + self._terms.visibility_ms
        dead = self._crew.dead(set[str]().union(*(each.book.workers for each in partitions)), now=False)
        for each in partitions:
            each.book.expire(now, dead)
        for each in partitions:
            if self._again(each, worker, now, until, limit, made):
                return
        for each in partitions:
            rest = min(limit - len(made.messages), MOST_OPEN - each.book.open_count)
            if rest > 0 and each.end > each.book.frontier:
                self._fresh(each, worker, now, until, rest, made)

    def _again(self, each: _Partition, worker: str, now: int, until: int, limit: int, made: Delivered) -> bool:
        """Deliver what was delivered or delayed before and is due; returns whether nothing else may be delivered."""
        chosen: dict[int, Entry] = {}
        most, alone = limit - len(made.messages), False
        for offset, entry in each.book.due(now):
            if len(chosen) >= most:
                break
            doubtful = entry.state == DOUBTFUL and not self._is_exhausted(entry)
            if doubtful and not alone:
                if chosen or made.messages:
                    continue  # not with others
                alone = True
                most = min(most, _DOUBTFUL_AT_ONCE if entry.deliveries <= 1 else 1)
            elif alone and not (doubtful and entry.deliveries <= 1):
                continue
            chosen[offset] = entry
        found = {record.offset: record for record in _records(each.log, chosen)}
        for offset, entry in chosen.items():
            record = found.get(offset)
            if record is None:  # compaction or retention has removed it
                each.book.finish(offset)
            elif self._is_exhausted(entry):
                each.book.put(offset, Entry(LEASED, entry.deliveries, until, worker))
                made.exhausted.append(Message(record, entry.deliveries, until, worker, self._queue_id))
            else:
                each.book.put(offset, Entry(LEASED, entry.deliveries + 1, until, worker))
                made.messages.append(Message(record, entry.deliveries + 1, until, worker, self._queue_id))
        return alone or len(made.messages) >= limit

    def _is_exhausted(self, entry: Entry) -> bool:
        return self._terms.max_deliveries is not None and entry.deliveries >= self._terms.max_deliveries

    def _fresh(self, each: _Partition, worker: str, now: int, until: int, limit: int, made: Delivered) -> None:
        """Deliver records that were not delivered so far."""
        leased = Entry(LEASED, 1, until, worker)
        entries: dict[int, Entry] = {}
        records: list[Record] = []
        first, size = each.book.frontier, 0
        reached = first
        try:
            for record in each.log.scan(first, each.end):
                offset = record.offset
                reached = offset + 1
                if not record.headers or self._is_due(record, now, entries):
                    entries[offset] = leased
                    records.append(record)
                    size += len(record.value or b"")
                if len(records) >= limit or size >= _MOST_BYTES or len(entries) >= _MOST_AT_ONCE:
                    break
            else:
                reached = each.end  # what follows the last record is no record either
        finally:  # also if the log is damaged: what was found before that is delivered
            made.messages += [Message(record, 1, until, worker, self._queue_id) for record in records]
            made.passed += reached - first
            each.book.grow(reached, entries)

    def _is_due(self, record: Record, now: int, entries: dict[int, Entry]) -> bool:
        """Whether to deliver a new record now: not if it is for another group, nor if it is to be delivered later,
        which is noted in the entries."""
        if not is_for(record, self._terms.group):
            return False
        later = not_before_ms(record)
        if later > now:
            entries[record.offset] = Entry(FREE, 0, later, "")
        return later <= now


def _records(log: Partition, offsets: dict[int, Entry]) -> Iterator[Record]:
    for first, end in runs_of(offsets):
        yield from log.scan(first, end)
