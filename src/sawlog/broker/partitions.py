"""The partitions that a broker serves, each log opened once, with the topic settings that produce and fetch need.

A topic is looked up in the store once and cached. Other processes may change or delete it, so `refresh` looks it up
again periodically; changes made by this broker take effect immediately.

Other processes may write to a partition, too; they take turns. A thread waits for the turn of this one.

Everything here belongs to the event loop's thread; opening, locking and lookups run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import SawlogError, TopicNotFound
from ..store import base, settings
from ..store.base import Topic

if TYPE_CHECKING:
    from .broker import Broker

_T = TypeVar("_T")

_logger = logging.getLogger("sawlog.broker")


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits on produced batches."""

    max_message_bytes: int
    compacted: bool
    #: True if the producer sets the timestamps; otherwise the log does.
    stamped: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int

    @classmethod
    def of(cls, topic: Topic) -> TopicLimits:
        given = settings.serving(topic.settings)
        return cls(
            given["max.message.bytes"],
            settings.is_compacted(topic.settings),
            topic.config.timestamp_type == "create",
            given["message.timestamp.before.max.ms"],
            given["message.timestamp.after.max.ms"],
        )


class ServedPartition:
    """One partition, for use in the event loop."""

    def __init__(self, topic: Topic, index: int, limits: TopicLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.topic = topic
        self.name = topic.name
        self.index = index
        self.limits = limits
        self.log: base.Partition = topic.partition(index)
        #: True if the topic is deleted or its logs are being reopened; callers must not wait here any more.
        self.is_gone = False
        self._loop = loop
        self._waiting: set[Callable[[], None]] = set()
        self._stop: Callable[[], None] | None = None
        self._is_waking = False
        self._is_resting = False

    # --- notification

    def wait(self, call: Callable[[], None]) -> None:
        """Call back in the event loop when there may be more to read, until `forget`."""
        self._waiting.add(call)
        if self._stop is None:
            self._stop = self.log._watch(self._moved)

    def forget(self, call: Callable[[], None]) -> None:
        """Undo `wait`."""
        self._waiting.discard(call)

    def _moved(self) -> None:
        """Handle an advance of the visible offset. Called in any thread, with the log locked."""
        if not self._is_waking and self._waiting:
            self._is_waking = True  # one wake-up for all moves until then
            try:
                self._loop.call_soon_threadsafe(self.wake)
            except RuntimeError:
                pass  # the loop is closed

    def rest(self) -> None:
        """Stop watching a log that had no waiters since the last call. Called periodically."""
        if self._waiting or self._stop is None:
            self._is_resting = False
        elif self._is_resting:
            self._stop()
            self._stop = None
        else:
            self._is_resting = True

    def wake(self) -> None:
        self._is_waking = False
        for call in list(self._waiting):
            call()

    def close(self) -> None:
        """Wake all waiters and stop watching."""
        self.is_gone = True
        if self._stop is not None:
            self._stop()
            self._stop = None
        self.wake()


class Partitions:
    """The topics and partitions of a broker, cached."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[str, Topic] = {}
        #: The settings of each topic, and the limits that follow from them.
        self._limits: dict[str, tuple[dict[str, settings.Value], TopicLimits]] = {}
        self._names: dict[bytes, str] = {}
        self._partitions: dict[tuple[str, int], ServedPartition] = {}
        #: Pending lookups of topics, and partitions that are being opened.
        self._pending: dict[object, asyncio.Future[Any]] = {}

    # --- topics

    def known(self, name: str, index: int) -> ServedPartition | None:
        """Return an open partition; None if it must be opened first."""
        found = self._partitions.get((name, index))
        if found is None or not found.log._is_closed:
            return found
        del self._partitions[name, index]  # closed to be reopened with other settings
        return None

    async def topic(self, name: str) -> Topic:
        """Return a topic. Raise `TopicNotFound`."""
        found = self._topics.get(name)
        if found is not None:
            return found
        return self.remember(await self._shared(name, lambda: self._broker.run(self._broker.store.topic, name)))

    async def _shared(self, key: object, start: Callable[[], Awaitable[_T]]) -> _T:
        """Share one call among all concurrent callers with the same key."""
        pending: asyncio.Future[_T] | None = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = asyncio.ensure_future(start())
            pending.add_done_callback(lambda done: _retrieved(done, self._pending.pop(key, None)))
        return await asyncio.shield(pending)

    def remember(self, topic: Topic) -> Topic:
        """Cache the current state of a topic."""
        before = self._topics.get(topic.name)
        if before is None or before.id != topic.id:
            if before is not None:
                self.drop(topic.name)
            self._topics[topic.name] = topic
            self._names[id_of(topic)] = topic.name
        if topic.name not in self._limits or self._limits[topic.name][0] != topic.settings:
            self._limits[topic.name] = topic.settings, TopicLimits.of(topic)
        return topic

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of a cached topic by id."""
        return self._names.get(topic_id)

    async def find_name(self, topic_id: bytes) -> str | None:
        """Return the name of a topic by id; None if it does not exist."""
        if topic_id not in self._names:
            for topic in await self.all_topics():
                if id_of(topic) == topic_id:
                    return topic.name
        return self._names.get(topic_id)

    async def all_topics(self) -> list[Topic]:
        """Return all readable topics, by name."""
        return [each for each in (await self.catalogue()).values() if not isinstance(each, SawlogError)]

    async def catalogue(self) -> dict[str, Topic | SawlogError]:
        """Return all topics by name, or the error of an unreadable one, which is logged."""
        found: dict[str, Topic | SawlogError] = {}
        for name in await self._broker.run(self._broker.store.topics):
            try:
                found[name] = await self.topic(name)
            except TopicNotFound:
                continue  # deleted meanwhile
            except SawlogError as error:
                _logger.error("cannot serve the topic %r: %s", name, error)
                found[name] = error
        return found

    # --- partitions

    async def partition(self, name: str, index: int) -> ServedPartition:
        """Return a partition, opened for reading. Raise `TopicNotFound`."""
        found = self.known(name, index)
        if found is not None:
            return found
        return await self._shared((name, index), lambda: self._open(name, index))

    async def _open(self, name: str, index: int) -> ServedPartition:
        topic = await self.topic(name)
        if index >= topic.partitions:
            await self.refresh(name)
            topic = await self.topic(name)
        await self._broker.run(topic.partition, index)
        made = ServedPartition(topic, index, self._limits[name][1], self._broker.loop)
        self._partitions[name, index] = made
        return made

    # --- changes

    async def refresh(self, *names: str) -> None:
        """Look up these topics again, or all cached ones: another process may have changed or deleted them."""
        for each in () if names else self:
            each.rest()
        found = await self._broker.run(self._look_up, names or tuple(self._topics))
        for name, topic in found.items():
            if topic is None:
                self.drop(name)
                continue
            self.remember(topic)
            for index in range(topic.partitions):
                if (partition := self._partitions.get((name, index))) is not None:
                    partition.limits = self._limits[name][1]

    def _look_up(self, names: tuple[str, ...]) -> dict[str, Topic | None]:
        """Return the current topics; None for a deleted one. Runs in a thread."""
        found: dict[str, Topic | None] = {}
        for name in names:
            try:
                found[name] = self._broker.store.topic(name)
            except TopicNotFound:
                found[name] = None
            except SawlogError as error:
                _logger.error("cannot look up the topic %r: %s", name, error)
        return found

    def drop(self, name: str) -> None:
        """Drop a topic that is or will be deleted."""
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._names.pop(id_of(topic), None)
        self._limits.pop(name, None)
        self.close_logs(name)

    def close_logs(self, name: str) -> None:
        """Drop the partitions of a topic before they are closed, and wake their waiters."""
        for key in [each for each in self._partitions if each[0] == name]:
            self._partitions.pop(key).close()

    def wake(self) -> None:
        for partition in self._partitions.values():
            partition.wake()

    def close(self) -> None:
        """Close all partitions and wake their waiters."""
        for partition in self._partitions.values():
            partition.close()
        self._partitions.clear()

    def __iter__(self) -> Iterator[ServedPartition]:
        return iter(list(self._partitions.values()))


def _retrieved(done: asyncio.Future[Any], forgotten: object) -> None:
    """Mark the exception as retrieved, because every caller may have been cancelled."""
    if not done.cancelled():
        done.exception()


def id_of(topic: Topic) -> bytes:
    """Return a topic's id as it appears on the wire."""
    return uuid.UUID(topic.id).bytes
