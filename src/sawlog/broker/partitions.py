"""The partitions that a broker serves: each log once, with what produce and fetch need to know of its topic.

A topic is looked up in the store once and remembered. Other processes may change or delete it, so that `refresh` looks
again from time to time; what this broker changes itself it forgets at once.

A partition is locked for writing when it is first produced to. One that another process has locked is still read; what
is produced to it goes there (`append_batches`).

All of this lives in the event loop's thread; opening, locking and looking up run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DirectoryLocked, SawlogError, TopicNotFound
from ..store import settings
from ..store.served import ServedLog, ServedTopic

if TYPE_CHECKING:
    from .broker import Broker

_logger = logging.getLogger("sawlog.broker")

#: How many batches for one partition are on their way to the process that holds it.
_ASKING = 4


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What may be produced to a topic."""

    max_message_bytes: int
    compacted: bool
    #: Whether the producer sets the timestamps; else the log does.
    stamped: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int

    @classmethod
    def of(cls, topic: ServedTopic) -> TopicLimits:
        """The limits of a topic."""
        given = settings.serving(topic.settings)
        return cls(
            given["max.message.bytes"],
            settings.is_compacted(topic.settings),
            topic.config.timestamp_type == "create",
            given["message.timestamp.before.max.ms"],
            given["message.timestamp.after.max.ms"],
        )


class Partition:
    """One partition, for the event loop."""

    __slots__ = (
        "_is_resting",
        "_is_waking",
        "_loop",
        "_stop",
        "_waiting",
        "asking",
        "forwarded",
        "index",
        "is_gone",
        "limits",
        "log",
        "topic",
    )

    def __init__(self, topic: ServedTopic, index: int, limits: TopicLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.topic = topic
        self.index = index
        self.limits = limits
        self.log: ServedLog = topic.partition(index)
        #: Whether another process has the lock, so that what is produced goes there.
        self.forwarded = False
        #: Held by those who wait for that process: each takes a thread.
        self.asking = asyncio.Semaphore(_ASKING)
        #: Whether the topic is deleted, or its logs are being opened again: nobody may wait here any more.
        self.is_gone = False
        self._loop = loop
        self._waiting: set[Callable[[], None]] = set()
        self._stop: Callable[[], None] | None = None
        self._is_waking = False
        self._is_resting = False

    # --- being told

    def wait(self, call: Callable[[], None]) -> None:
        """Call back, in the loop, when there may be more to read. Until `forget`."""
        self._waiting.add(call)
        if self._stop is None:
            self._stop = self.log.watch(self._moved)

    def forget(self, call: Callable[[], None]) -> None:
        """The opposite of `wait`."""
        self._waiting.discard(call)

    def _moved(self) -> None:
        """The visible end has moved: in any thread, and while the log is locked."""
        if not self._is_waking and self._waiting:
            self._is_waking = True  # one wake-up for all that moves meanwhile
            try:
                self._loop.call_soon_threadsafe(self.wake)
            except RuntimeError:
                pass  # the loop is closed

    def rest(self) -> None:
        """Now and then: do not watch what nobody has waited for since the last time."""
        if self._waiting or self._stop is None:
            self._is_resting = False
        elif self._is_resting:
            self._stop()
            self._stop = None
        else:
            self._is_resting = True

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._is_waking = False
        for call in list(self._waiting):
            call()

    def close(self) -> None:
        """Wake everybody who waits; nothing is called after that."""
        self.is_gone = True
        if self._stop is not None:
            self._stop()
            self._stop = None
        self.wake()


class Partitions:
    """The topics and partitions of a broker, as last seen."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[str, ServedTopic] = {}
        self._limits: dict[str, TopicLimits] = {}
        self._settings: dict[str, dict[str, settings.Value]] = {}
        self._names: dict[bytes, str] = {}
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._looking: dict[str, asyncio.Future[ServedTopic]] = {}
        self._opening: dict[tuple[str, int], asyncio.Future[Partition]] = {}

    # --- topics

    def known(self, name: str, index: int) -> Partition | None:
        """A partition that is open; None if it has to be opened first."""
        found = self._partitions.get((name, index))
        if found is None or not found.log.closed:
            return found
        del self._partitions[name, index]  # closed to be opened again with other settings
        return None

    async def topic(self, name: str) -> ServedTopic:
        """A topic by name; `TopicNotFound`."""
        found = self._topics.get(name)
        if found is not None:
            return found
        looking = self._looking.get(name)
        if looking is None:
            looking = asyncio.ensure_future(self._broker.run(self._broker.store.topic, name))
            self._looking[name] = looking
            looking.add_done_callback(lambda done: _retrieved(done, self._looking.pop(name, None)))
        return self.remember(await asyncio.shield(looking))

    def remember(self, topic: ServedTopic) -> ServedTopic:
        """A topic as it is now."""
        before = self._topics.get(topic.name)
        if before is None or before.id != topic.id:
            if before is not None:
                self.drop(topic.name)
            self._topics[topic.name] = topic
            self._names[id_of(topic)] = topic.name
        if self._settings.get(topic.name) != topic.settings:
            self._settings[topic.name] = topic.settings
            self._limits[topic.name] = TopicLimits.of(topic)
        return topic

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that is known, by its id."""
        return self._names.get(topic_id)

    async def find_name(self, topic_id: bytes) -> str | None:
        """The name of a topic by its id; None if there is none."""
        if topic_id not in self._names:
            for topic in await self.all_topics():
                if id_of(topic) == topic_id:
                    return topic.name
        return self._names.get(topic_id)

    async def all_topics(self) -> list[ServedTopic]:
        """All topics, by name, without those that cannot be looked at."""
        return [each for each in (await self.catalogue()).values() if not isinstance(each, SawlogError)]

    async def catalogue(self) -> dict[str, ServedTopic | SawlogError]:
        """All topics, by name; or the error, which is logged as well, if one cannot be looked at."""
        found: dict[str, ServedTopic | SawlogError] = {}
        for name in await self._broker.run(self._broker.store.topics):
            try:
                found[name] = await self.topic(name)
            except TopicNotFound:
                continue  # deleted meanwhile
            except SawlogError as error:
                _logger.error("the topic %r cannot be served: %s", name, error)
                found[name] = error
        return found

    # --- partitions

    async def partition(self, name: str, index: int) -> Partition:
        """A partition, opened for reading; `TopicNotFound`."""
        found = self.known(name, index)
        if found is not None:
            return found
        opening = self._opening.get((name, index))
        if opening is None:
            opening = asyncio.ensure_future(self._open(name, index))
            self._opening[name, index] = opening
            opening.add_done_callback(lambda done: _retrieved(done, self._opening.pop((name, index), None)))
        return await asyncio.shield(opening)

    async def _open(self, name: str, index: int) -> Partition:
        topic = await self.topic(name)
        if index >= topic.partitions:
            await self.refresh(name)
            topic = await self.topic(name)
        await self._broker.run(topic.partition, index)
        made = Partition(topic, index, self._limits[name], self._broker.loop)
        self._partitions[name, index] = made
        return made

    async def lock(self, partition: Partition) -> None:
        """Become the writer of a partition, or learn that another process is."""
        try:
            await self._broker.run(partition.log._take)
            partition.forwarded = False
        except DirectoryLocked:
            partition.forwarded = True

    # --- change

    async def refresh(self, *names: str) -> None:
        """Look at these topics again, or at all that are known: another process may have changed or deleted them."""
        for each in () if names else self:
            each.rest()
        found = await self._broker.run(self._look, names or tuple(self._topics))
        for name, topic in found.items():
            if topic is None:
                self.drop(name)
                continue
            self.remember(topic)
            limits = self._limits[name]
            for index in range(topic.partitions):
                partition = self._partitions.get((name, index))
                if partition is not None:
                    partition.limits = limits

    def _look(self, names: tuple[str, ...]) -> dict[str, ServedTopic | None]:
        """The topics as they are now; None for one that is gone. In a thread."""
        found: dict[str, ServedTopic | None] = {}
        for name in names:
            try:
                found[name] = self._broker.store.topic(name)
            except TopicNotFound:
                found[name] = None
            except SawlogError as error:
                _logger.error("the topic %r cannot be looked at: %s", name, error)
        return found

    def drop(self, name: str) -> None:
        """Forget a topic: it is deleted, or is about to be."""
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._names.pop(id_of(topic), None)
        self._settings.pop(name, None)
        self._limits.pop(name, None)
        self.close_logs(name)

    def close_logs(self, name: str) -> None:
        """Forget the partitions of a topic: they are about to be closed. Who waits for records there is woken."""
        for key in [each for each in self._partitions if each[0] == name]:
            self._partitions.pop(key).close()

    def wake(self) -> None:
        """Let everybody who waits for records look again."""
        for partition in self._partitions.values():
            partition.wake()

    def close(self) -> None:
        """Wake everybody who waits for records."""
        for partition in self._partitions.values():
            partition.close()
        self._partitions.clear()

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))


def _retrieved(done: asyncio.Future[Any], forgotten: object) -> None:
    """Everybody who asked may be gone; then the error is nobody's, and asyncio need not complain."""
    if not done.cancelled():
        done.exception()


def id_of(topic: ServedTopic) -> bytes:
    """A topic's id as Kafka's wire has it."""
    return uuid.UUID(topic.id).bytes
