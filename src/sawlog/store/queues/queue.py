"""`Queue`: delivers the records of a topic to workers, who acknowledge them one by one.

```python
with store.queue("orders", group="workers") as queue:
    for message in queue:                    # blocks until there is one
        try:
            work(message.value)
        except TemporaryError:
            queue.release(message, delay_s=30)
        else:
            queue.ack(message)
```

*At least once.* A delivered message belongs to the worker until it answers (`ack`, `release`, `reject`) or the
visibility timeout expires. Then the message is delivered again, with `deliveries` incremented. After `max_deliveries`
it goes to the dead-letter topic instead. Messages of a process that dies are delivered again at once.

*Workers.* Any number of threads can share a queue object, and any number of processes can open the same queue. Each
message is with one worker at a time, whatever its partition. Messages arrive roughly in log order, which is not
guaranteed. Consumers of other groups see the same records.

*Durability.* Leases and acknowledgements are in the log of the groups, synced. Answers are written in batches: with the
next fetch, after a tenth of a second, by `flush`, and by `close`. If the process dies before an ack is written, the
message is delivered again.

*Prefetching.* Fetches start with one message and grow, up to `prefetch`, while messages are consumed quickly. Messages
that were fetched but not handed out when the queue is closed do not count as delivered.

Thread-safe. A forked child must open its own store.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from ... import background
from ...batch.inputs import HeadersInput
from ...clock import Deadline, PollBackoff, Stopwatch, now_ms
from ...closing import OneShotEvent
from ...config import checked_count
from ...errors import GroupError, InvalidConfig, LogClosed, ReadOnlyLog, SawlogError, TopicNotFound
from ...storage.forking import forkable, this_process
from ..base import Position, Store
from ..options import QueueOptions, milliseconds_of
from .delivery import Delivery
from .message import Answer, Message, QueueCounts, dead_letter, delayed, redrive_group

_logger = logging.getLogger("sawlog.store.queues")

#: Interval for writing answers and sending heartbeats.
_FLUSH_S = 0.1
#: Interval at which `drain(wait=True)` looks whether everything is finished.
_DRAIN_WAIT_S = 0.5
#: A fetch consumed faster than the first is followed by a larger one; slower than the second, by a smaller one.
_FAST_S, _SLOW_S = 0.1, 0.5
#: Maximum number of buffered acks before they are written at once.
_MOST_ANSWERS = 5000


class Queue:
    """A queue over a topic. Created by `Store.queue`."""

    def __init__(self, store: Store, options: QueueOptions) -> None:
        self._options = options
        self._visibility_ms = options.visibility_ms
        if store.mode == "r":
            raise ReadOnlyLog(f'the store {store.path} was opened with mode="r": a queue writes acknowledgements')
        self._store = store
        self._process = this_process()
        states, self._workers = store.groups._queueing(self._options)
        #: Identifies this queue in its messages.
        self._id = object()
        self._delivery = Delivery(states, self._workers, self._options, store.topic, self._id)
        #: Held during an exchange.
        self._exchanging = forkable(threading.RLock())
        #: Fetched and not handed out. This and the next two are changed by atomic calls, without a lock.
        self._ready: deque[Message] = deque()
        #: Handed out and not answered.
        self._out: dict[tuple[int, int], Message] = {}
        #: Finished and not written yet.
        self._acked: deque[Message] = deque()
        #: Guards the following; never held while waiting.
        self._mutex = forkable(threading.Lock())
        #: Other answers that are not written yet.
        self._answers: dict[tuple[int, int], Answer] = {}
        #: True if one of them releases a message, which may be delivered again at once.
        self._gave_back = False
        #: Number of messages that the last fetch asked for.
        self._batch = 0
        self._fetched = Stopwatch()
        self._ended = forkable(OneShotEvent())
        self._late = 0
        self._ailing = False
        store.topic(options.topic)  # raises `TopicNotFound` now rather than at the first message
        try:
            self._delivery.exchange([], [], 0)  # joins
        except BaseException:
            self._workers.leave()
            raise
        self._task = background.every(_FLUSH_S, self._tick)

    # --- properties

    @property
    def topic(self) -> str:
        """Topic whose records it delivers."""
        return self._options.topic

    @property
    def group(self) -> str:
        """Group whose progress it tracks."""
        return self._options.group

    @property
    def dead_letters(self) -> str:
        """Dead-letter topic, created with the first dead letter."""
        return self._options.dead_letter_topic

    @property
    def late_answers(self) -> int:
        """Number of answers that came after the timeout, when the message had been delivered again. They had no
        effect."""
        return self._late

    # --- messages

    def __iter__(self) -> Iterator[Message]:
        """Yield messages as they arrive, blocking, until `close`."""
        return self._messages(None)

    def drain(self, *, wait: bool = False) -> Iterator[Message]:
        """Yield messages until none is deliverable now. With `wait`, until every message is finished or dead: also wait
        for delayed messages, for retries, and for messages that are with a worker."""
        yield from self._messages(0.0)
        while wait and not self._ended.is_set() and self.counts().unfinished:
            if (found := self._next(Deadline(_DRAIN_WAIT_S))) is not None:
                yield found
                yield from self._messages(0.0)

    def counts(self) -> QueueCounts:
        """Return how many messages are ready, delayed, in flight and dead. Writes the answers so far first, because
        they count."""
        self.flush()
        with self._exchanging:
            ready, delayed, in_flight = self._delivery.counts()
        return QueueCounts(ready, delayed, in_flight, self._dead_count())

    def _dead_count(self) -> int:
        try:
            topic = self._store.topic(self.dead_letters)
        except TopicNotFound:
            return 0
        count, redriven = 0, self._store.groups.committed(redrive_group(self.group))
        for number in range(topic.partitions):
            log, reached = topic.partition(number), redriven.get((topic.name, number))
            start = reached.offset if reached is not None and reached.topic_id == topic.id else 0
            count += max(log.visible_offset - max(start, log.lowest_offset), 0)
        return count

    def _messages(self, timeout_s: float | None) -> Iterator[Message]:
        while (found := self._take() or self._next(Deadline(timeout_s))) is not None:
            yield found

    def receive(self, max_messages: int = 1, timeout_s: float = 1.0) -> list[Message]:
        """Return up to `max_messages` messages as soon as there are any; an empty list after `timeout_s`."""
        checked_count("max_messages", max_messages)
        found = self._next(Deadline(milliseconds_of("timeout_s", timeout_s) / 1000), at_least=max_messages)
        messages = [] if found is None else [found]
        while messages and len(messages) < max_messages and (more := self._take()) is not None:
            messages.append(more)
        return messages

    def _next(self, deadline: Deadline, at_least: int = 1) -> Message | None:
        """Return the next message; None on timeout or if the queue is closed. If it has to fetch, it fetches `at_least`
        that many if available."""
        found = self._take()
        if found is not None:
            return found
        pauses = PollBackoff()
        self._check_open()
        while True:
            pauses.look()
            with self._exchanging:  # one thread fetches for all
                found = self._take()
                progress = False
                if found is None and not self._ended.is_set() and (self._gave_back or self._delivery.has_work()):
                    progress = self._exchange(self._next_batch(at_least))
                    found = self._take(at_once=True)
            if found is not None or (deadline.passed and not progress):
                return found
            if progress:  # only dead letters, or delayed ones
                continue
            if self._ended.wait(deadline.at_most(pauses.next_s())):
                return None

    def _take(self, *, at_once: bool = False) -> Message | None:
        """Return the next fetched message; None if there is none or too little of its lease is left, unless it was
        fetched just now."""
        try:
            message = self._ready.popleft()
        except IndexError:
            return None
        if not at_once and message.until_ms - now_ms() < self._visibility_ms // 2:
            with self._mutex:
                self._return_ready(message)
            return None
        self._out[message._place] = message
        return message

    def _return_ready(self, *more: Message) -> None:
        """Give back fetched messages that were not handed out, as if they had not been delivered. The caller holds the
        mutex."""
        self._gave_back = True
        unseen = list(more)
        while self._ready:
            unseen.append(self._ready.popleft())
        self._answers.update((message._place, Answer(message, "unseen")) for message in unseen)

    def _next_batch(self, at_least: int) -> int:
        elapsed_s = self._fetched.restart()
        if elapsed_s < _FAST_S:
            self._batch *= 2
        elif elapsed_s > _SLOW_S:
            self._batch //= 2
        self._batch = min(max(self._batch, 1), self._options.prefetch)
        return max(self._batch, min(at_least, self._options.prefetch))

    # --- answers

    def ack(self, message: Message) -> None:
        """Finish the message. Durable after `flush`, or within a fraction of a second."""
        foreign = type(message) is not Message or message._queue_id is not self._id
        if foreign or message._answered or self._ended.is_set():
            self._check(message)
        message._close()
        if self._out.get(message._place) is not message:
            self._late += 1
            return
        self._out.pop(message._place, None)
        self._acked.append(message)
        if len(self._acked) > _MOST_ANSWERS:
            self.flush()

    def release(self, message: Message, delay_s: float | None = None) -> None:
        """Deliver the message again, to any worker, after `delay_s` seconds; the default is the queue's back-off. If it
        was delivered `max_deliveries` times, it becomes a dead letter instead."""
        if delay_s is not None:
            delay_ms = milliseconds_of("delay_s", delay_s)
        else:
            delay_ms = self._options.retry_delay_ms(message.deliveries) if isinstance(message, Message) else 0
        most = self._options.max_deliveries
        if most is not None and message.deliveries >= most:
            self._answer(message, "dead", reason=f"released after {message.deliveries} deliveries")
        else:
            self._answer(message, "free", until_ms=now_ms() + delay_ms if delay_ms else 0)

    def reject(self, message: Message, reason: str = "rejected") -> None:
        """Turn a message that cannot be processed into a dead letter, with the reason."""
        self._answer(message, "dead", reason=str(reason))

    def extend(self, message: Message, visibility_s: float | None = None) -> None:
        """Extend the lease to that long from now; the default is the queue's timeout. Durable on return. `GroupError`
        if the message was delivered to another worker meanwhile."""
        own_ms = self._visibility_ms
        until_ms = now_ms() + (own_ms if visibility_s is None else milliseconds_of("visibility_s", visibility_s, 0.001))
        self._check(message)
        with self._exchanging:
            if self._delivery.exchange([], [Answer(message, "longer", until_ms)], 0).late:
                raise GroupError(f"{message!r} was delivered to another worker: its lease had expired")
        message._extend(until_ms)

    def _answer(self, message: Message, what: str, *, until_ms: int = 0, reason: str = "") -> None:
        self._check(message)
        message._close()
        if self._out.get(message._place) is not message:  # its lease expired, and another thread has it
            self._late += 1
            return
        self._out.pop(message._place, None)
        with self._mutex:
            self._answers[message._place] = Answer(message, what, until_ms, reason)
            self._gave_back |= what == "free"

    def _check(self, message: Message) -> None:
        self._check_open()
        if not isinstance(message, Message):
            raise InvalidConfig(f"expected a message of this queue, not {type(message).__name__}")
        if message._answered or message._queue_id is not self._id:
            why = "was answered before" if message._answered else "was delivered by another queue"
            raise GroupError(f"{message!r} is not with this queue: it {why}")

    def flush(self) -> None:
        """Write all answers so far. Durable on return."""
        self._check_open()
        self._exchange(0)

    # --- sending

    def put(
        self, value: bytes | None, key: bytes | None = None, headers: HeadersInput = (), *, delay_s: float = 0.0
    ) -> Position:
        """Append a message to the topic, to be delivered after `delay_s` seconds; consumers see it at once. Without a
        delay this is `topic.append`."""
        delay_ms = milliseconds_of("delay_s", delay_s)
        self._check_open()
        listed = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        given = delayed(listed, now_ms() + delay_ms) if delay_ms else listed
        return self._store.topic(self._options.topic).append(value, key, given)

    # --- exchanging

    def _exchange(self, limit: int) -> bool:
        """Write the answers and fetch messages; return whether there was anything new, including dead letters and
        delayed messages."""
        with self._exchanging:
            with self._mutex:
                answers, self._answers, self._gave_back = self._answers, {}, False
            acked = [self._acked.popleft() for _ in range(len(self._acked))]
            if not answers and not acked and limit == 0:
                return False
            failure: SawlogError | None = None
            try:
                try:
                    self._bury(answers.values())
                except SawlogError as error:  # the other answers are written nevertheless
                    failure = error
                others = [each for each in answers.values() if each.what != "dead"]
                done = self._delivery.exchange(acked, others, limit)
            except BaseException:
                self._acked.extend(acked)
                with self._mutex:
                    self._answers = {**answers, **self._answers}
                raise
            if done.late:
                self._late += done.late
                _logger.warning(
                    "%d answers for %r came too late: the messages were delivered again", done.late, self.topic
                )
            with self._mutex:
                self._ready.extend(done.messages)
                self._answers.update((place, each) for place, each in answers.items() if each.what == "dead")
                for message in done.exhausted:
                    answer = Answer(message, "dead", reason=f"not acknowledged after {message.deliveries} deliveries")
                    self._answers[message._place] = answer
            if failure is not None:
                raise failure
            return bool(done.messages or done.exhausted or done.passed)

    def _bury(self, answers: Iterable[Answer]) -> None:
        """Store dead letters durably before their messages are finished: a crash in between duplicates them and never
        loses them."""
        dead = [answer for answer in answers if answer.what == "dead"]
        if not dead:
            return
        self._store.create_topic(self.dead_letters, exist_ok=True)
        letters: list[Any] = [dead_letter(each.message, self._options.group, each.reason) for each in dead]
        with self._store.transaction() as transaction:
            transaction.append_many(self.dead_letters, letters)
        for each in dead:
            each.finish()

    def _tick(self) -> None:
        """Write answers and send a heartbeat. Called by the background thread."""
        if self._ended.is_set() or self._process != this_process():
            return
        try:
            self._workers.beat()
            if self._answers or self._acked:
                self._exchange(0)
            self._ailing = False
        except Exception:  # the thread serves the whole process
            if not self._ailing and not self._ended.is_set():
                _logger.exception("answers for the queue %r could not be written; trying again", self.topic)
            self._ailing = True

    # --- closing

    def close(self) -> None:
        """Write all answers, release the messages that are not answered, and leave the group. Safe to call twice, from
        any thread."""
        self._close(quiet=sys.exc_info()[0] is not None)

    def _close(self, *, quiet: bool) -> None:
        with self._exchanging:
            if self._ended.is_set() or self._process != this_process():
                return
            self._ended.set()
            self._task.cancel()
            with ExitStack() as last:
                last.callback(self._workers.leave)
                try:
                    with self._mutex:
                        self._return_ready()
                        self._answers.update((each._place, Answer(each, "free")) for each in list(self._out.values()))
                        self._out.clear()
                    while self._answers or self._acked:
                        self._exchange(0)
                except SawlogError:
                    if not quiet:
                        raise
                    _logger.exception("the last answers for the queue %r could not be written", self.topic)

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise LogClosed("the queue is closed")
        if self._process != this_process():
            raise LogClosed("this queue belongs to the parent process, before the fork")

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(quiet=kind is not None)

    def __del__(self) -> None:
        """Treat a queue that was dropped without `close` as if its process had died."""
        if hasattr(self, "_task") and not self._ended.is_set():
            self._ended.set()
            self._task.cancel()
            self._workers.abandon()

    def __repr__(self) -> str:
        state = " closed" if self._ended.is_set() else ""
        return f"<Queue {self._options.topic} group={self._options.group!r}{state}>"
