"""`Delivery`: one exchange between a worker and the groups' log, which records answers and fetches messages.

A turn is exclusive among all processes (`sawlog.log.shared`; on object storage the loser of a race retries), and writes
a single append: the committed offset and all changed pages, or nothing. So a message is with one worker at a time, and
a crash at any moment leaves the state before or after the turn.

Redeliveries and delayed messages that are due come first, in offset order, then new messages. A message whose worker
died or did not answer is *doubtful*: it may be what killed the worker. Doubtful messages are never mixed with others:
they are delivered ten at a time after the first delivery, then one at a time, so that a message that kills its workers
takes no others with it to the dead letters.

For one thread at a time.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ...batch.kernel import Record
from ...clock import PollBackoff, now_ms, pause, rechecks
from ...errors import SawlogError
from ..base import Partition, Topic, TopicPartition
from ..groups import Committed, DeliveryStates, QueueTurn, QueueWorkers, TurnConflict
from ..options import QueueOptions
from .delivery_state import DOUBTFUL, FREE, LEASED, DeliveryState, Entry, runs_of
from .message import Answer, Message, is_for, not_before_ms

_logger = logging.getLogger("sawlog.store.queues")

#: Maximum number of open messages per partition; new ones are not delivered until some are finished.
MOST_OPEN = 50_000
#: Maximum size of the values in one fetch.
_MOST_BYTES = 16 << 20
#: Maximum number of new messages examined in one turn, in case most of them are delayed.
_MOST_AT_ONCE = 5000
#: Maximum number of doubtful messages delivered at once.
_DOUBTFUL_AT_ONCE = 10


#: Finished messages, and other answers.
_Said = tuple[Sequence[Message], Sequence[Answer]]


@dataclass(slots=True)
class Delivered:
    """Result of an exchange."""

    messages: list[Message] = field(default_factory=list)
    #: Messages that have used up their deliveries, leased to this worker to become dead letters.
    exhausted: list[Message] = field(default_factory=list)
    #: Number of late answers: another worker had the message by then.
    late: int = 0
    #: Number of new offsets examined, delivered or not.
    passed: int = 0


class _Partition:
    """Delivery state of one partition, with its log."""

    def __init__(self, topic: Topic, number: int) -> None:
        self.topic_partition: TopicPartition = (topic.name, number)
        self.log: Partition = topic.partition(number)
        self.state = DeliveryState(topic.id)
        #: Committed offset, with the leader epoch in which it was read.
        self.committed: tuple[int, int] | None = None
        #: End of the log and its leader epoch at the beginning of the turn. Only records below that end are delivered,
        #: so they belong to this epoch or an earlier one.
        self.end, self.epoch = 0, -1

    def load(self, found: Committed | None, topic_id: str, pages: dict[int, bytes]) -> None:
        valid = found is not None and found.topic_id == topic_id
        self.committed = (found.offset, found.leader_epoch) if found is not None and valid else None
        base = self.log.lowest_offset if self.committed is None else self.committed[0]
        self.state.load(base, pages)

    def has_new(self) -> bool:
        return self.log.position()[0] > self.state.frontier and self.state.open_count < MOST_OPEN

    def follow_log(self) -> None:
        """Drop offsets that the log no longer has: retention and trim at its beginning, truncation at its end."""
        if self._is_beyond() and all(self._is_beyond() for _ in rechecks()):
            assert self.committed is not None
            end = self.log.epoch_end(self.committed[1])
            _logger.warning(
                "partition %d of %r has lost its records from offset %d on (a power cut, or truncate); the queue "
                "continues there",
                self.topic_partition[1],
                self.topic_partition[0],
                end,
            )
            self.state.cut(end)
        self.end, self.epoch = self.log.position()
        lost = self.state.advance(self.log.lowest_offset)
        if lost:
            _logger.warning("%d messages of %s/%d were removed before they were finished", lost, *self.topic_partition)

    def _is_beyond(self) -> bool:
        if self.committed is None:
            return False
        self.log.position()
        return self.state.frontier > self.log.epoch_end(self.committed[1])


class Delivery:
    """Exchanges messages and answers with the groups' log."""

    def __init__(
        self,
        offsets: DeliveryStates,
        workers: QueueWorkers,
        options: QueueOptions,
        topic_of: Callable[[str], Topic],
        queue_id: object,
    ) -> None:
        self._offsets = offsets
        self._workers = workers
        self._options = options
        self._topic_of = topic_of
        #: Identifies the queue in its messages.
        self._queue_id = queue_id
        self._topic_id = ""
        self._partitions: dict[int, _Partition] = {}
        #: Partition to start with: round robin.
        self._next = 0

    # --- looking, without a turn

    def has_work(self) -> bool:
        try:
            return self._looks_promising(self._known())
        except BaseException:
            self._partitions = {}
            raise

    def _looks_promising(self, partitions: list[_Partition]) -> bool:
        offsets, pages = self._offsets.of(self._options.group), self._offsets.pages(self._options.group)
        now = now_ms()
        workers: set[str] = set()
        for each in partitions:
            each.load(offsets.get(each.topic_partition), self._topic_id, pages.get(each.topic_partition, {}))
            if each.state.due_ms <= now or each.has_new():
                return True
            workers |= each.state.workers
        return bool(self._workers.dead(workers, now=False))

    def counts(self) -> tuple[int, int, int]:
        """Return how many messages are ready, delayed and in flight. Messages that were never delivered are ready."""
        try:
            partitions = self._known()
            offsets, pages = self._offsets.of(self._options.group), self._offsets.pages(self._options.group)
            ready = delayed = leased = 0
            for each in partitions:
                each.load(offsets.get(each.topic_partition), self._topic_id, pages.get(each.topic_partition, {}))
                due, waiting, working = each.state.counts(now_ms())
                ready += due + max(each.log.position()[0] - each.state.frontier, 0)
                delayed, leased = delayed + waiting, leased + working
        except BaseException:
            self._partitions = {}
            raise
        return ready, delayed, leased

    def _known(self) -> list[_Partition]:
        """Return the partitions, starting with the next one in the round."""
        topic = self._topic_of(self._options.topic)
        if topic.id != self._topic_id:
            self._topic_id, self._partitions = topic.id, {}
        for number in range(len(self._partitions), topic.partitions):
            self._partitions[number] = _Partition(topic, number)
        count = len(self._partitions)
        return [self._partitions[(self._next + number) % count] for number in range(count)]

    # --- a turn

    def exchange(self, acked: Sequence[Message], answers: Sequence[Answer], limit: int) -> Delivered:
        """Finish messages, record other answers, and fetch up to `limit` messages. Durable on return; if it raises,
        nothing has changed."""
        pauses = PollBackoff()
        while True:
            try:
                topic = self._topic_of(self._options.topic)
                partitions = self._known()
                with self._offsets.turn() as turn:
                    return self._in_turn(turn, topic, partitions, (acked, answers), limit)
            except TurnConflict:
                self._partitions = {}
                pause(pauses.next_s() * random.uniform(0.5, 1.5))  # jitter, so that workers do not retry in step
            except BaseException:
                self._partitions = {}  # they may have changed in memory
                raise

    def _in_turn(
        self, turn: QueueTurn, topic: Topic, partitions: list[_Partition], said: _Said, limit: int
    ) -> Delivered:
        worker, group = self._workers.join(), self._options.group
        turn.places(group, [topic], self._options.start, worker)  # commits where a new group begins
        offsets, pages = turn.offsets(group), turn.pages(group)
        for each in partitions:
            each.load(offsets.get(each.topic_partition), topic.id, pages.get(each.topic_partition, {}))
            each.follow_log()
        made = Delivered(late=self._answer(*said))
        failure: SawlogError | None = None
        if limit > 0:
            try:
                self._deliver(partitions, worker, limit, made)
            except SawlogError as error:  # the answers, and the messages found before it, are written nevertheless
                failure = error
            self._next += 1
        self._write(turn, topic, partitions, worker)
        if failure is not None and not made.messages:
            raise failure
        return made

    def _write(self, turn: QueueTurn, topic: Topic, partitions: list[_Partition], worker: str) -> None:
        offsets: dict[TopicPartition, Committed] = {}
        pages: dict[TopicPartition, dict[int, bytes | None]] = {}
        for each in partitions:
            changed = each.state.settle()
            if changed:
                pages[each.topic_partition] = changed
            if each.committed != (each.state.base, each.epoch) and (changed or each.committed is not None):
                offsets[each.topic_partition] = Committed.by_member(worker, topic.id, each.state.base, each.epoch)
        turn.write_all([(self._options.group, offsets)], pages={self._options.group: pages})
        for each in partitions:
            each.state.stored(pages.get(each.topic_partition, {}))

    # --- answers

    def _answer(self, acked: Sequence[Message], answers: Sequence[Answer]) -> int:
        """Apply answers; return how many came too late."""
        by_partition: defaultdict[int, list[Message]] = defaultdict(list)
        for message in acked:
            by_partition[message._place[0]].append(message)
        late = 0
        for number, messages in by_partition.items():
            known = self._partitions.get(number)
            late += len(messages) if known is None else known.state.finish_all(messages)
        for answer in answers:
            message = answer.message
            known = self._partitions.get(message._place[0])
            if known is None or not known.state.is_with(message):
                late += 1
            elif answer.what == "done":
                known.state.finish(message.offset)
            elif answer.what == "longer":
                known.state.put(message.offset, Entry(LEASED, message.deliveries, answer.until_ms, message._lease))
            else:
                seen = message.deliveries - (answer.what == "unseen")
                known.state.put(message.offset, Entry(FREE, seen, answer.until_ms, ""))
        return late

    # --- messages

    def _deliver(self, partitions: list[_Partition], worker: str, limit: int, made: Delivered) -> None:
        now = now_ms()
        until = now + self._options.visibility_ms
        dead = self._workers.dead(set[str]().union(*(each.state.workers for each in partitions)), now=False)
        for each in partitions:
            each.state.expire(now, dead)
        for each in partitions:
            if self._again(each, worker, now, until, limit, made):
                return
        for each in partitions:
            rest = min(limit - len(made.messages), MOST_OPEN - each.state.open_count)
            if rest > 0 and each.end > each.state.frontier:
                self._fresh(each, worker, now, until, rest, made)

    def _again(self, each: _Partition, worker: str, now: int, until: int, limit: int, made: Delivered) -> bool:
        """Deliver redeliveries and delayed messages that are due; return whether nothing else may be delivered."""
        chosen: dict[int, Entry] = {}
        most, alone = limit - len(made.messages), False
        for offset, entry in each.state.due(now):
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
                each.state.finish(offset)
            elif self._is_exhausted(entry):
                each.state.put(offset, Entry(LEASED, entry.deliveries, until, worker))
                made.exhausted.append(Message(record, entry.deliveries, until, worker, self._queue_id))
            else:
                each.state.put(offset, Entry(LEASED, entry.deliveries + 1, until, worker))
                made.messages.append(Message(record, entry.deliveries + 1, until, worker, self._queue_id))
        return alone or len(made.messages) >= limit

    def _is_exhausted(self, entry: Entry) -> bool:
        return self._options.max_deliveries is not None and entry.deliveries >= self._options.max_deliveries

    def _fresh(self, each: _Partition, worker: str, now: int, until: int, limit: int, made: Delivered) -> None:
        """Deliver records for the first time."""
        leased = Entry(LEASED, 1, until, worker)
        entries: dict[int, Entry] = {}
        records: list[Record] = []
        first, size = each.state.frontier, 0
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
                reached = each.end  # there is no record after the last one
        finally:  # if the log is damaged, the records before the damage are delivered
            made.messages += [Message(record, 1, until, worker, self._queue_id) for record in records]
            made.passed += reached - first
            each.state.grow(reached, entries)

    def _is_due(self, record: Record, now: int, entries: dict[int, Entry]) -> bool:
        """Return whether to deliver a new record now: not if it is for another group, nor if it is delayed, in which
        case it is added to `entries`."""
        if not is_for(record, self._options.group):
            return False
        later = not_before_ms(record)
        if later > now:
            entries[record.offset] = Entry(FREE, 0, later, "")
        return later <= now


def _records(log: Partition, offsets: dict[int, Entry]) -> Iterator[Record]:
    for first, end in runs_of(offsets):
        yield from log.scan(first, end)
