"""`ServedTopic`: a topic on object storage for a broker, as of the last folded commit. It never sends a request."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from ....config import LogConfig
from ....errors import TopicNotFound
from ... import settings as topic_settings
from ...settings import Value
from ..partition import ObjectPartition
from ..session import StoreSession
from .partition import ServedPartition


class ServedTopic:
    """A topic, identified by its id when it was looked up."""

    def __init__(self, session: StoreSession, threads: Executor, name: str, entry: Mapping[str, Any]) -> None:
        self._session = session
        self._threads = threads
        self._known = entry
        self.name = name
        self.id = str(entry["id"])
        self._logs: dict[int, ServedPartition] = {}

    def _entry(self) -> Mapping[str, Any]:
        """Return the entry of the topic; the last known one if the topic was deleted."""
        found = self._session.peek(lambda state: state.topic(self.name))
        if found is not None and found["id"] == self.id:
            self._known = found
        return self._known

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return int(self._entry()["partitions"])

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that differ from their defaults."""
        return dict(self._entry()["settings"])

    @property
    def config(self) -> LogConfig:
        """The configuration of its partitions."""
        return topic_settings.log_config(self._entry()["settings"])

    def partition(self, number: int) -> ServedPartition:
        found = self._logs.get(number)
        if found is not None:
            return found
        if not 0 <= number < self.partitions:
            raise TopicNotFound(f"the topic {self.name!r} has partitions 0 to {self.partitions - 1}, not {number}")
        config = _Kept(self)
        below = ObjectPartition(self._session, self.name, self.id, number, self.config)
        made = ServedPartition(self._session, self._threads, below, self.name, self.id, number, config)
        return self._logs.setdefault(number, made)

    def append_batches(self, raw: memoryview, partition: int, *, trusted: bool = False) -> range:
        """Append batches and wait for the commit."""
        return self.partition(partition)._place_batches(raw, trusted=trusted).result()


class _Kept:
    """A topic's config, recomputed when its settings change, because every batch needs it."""

    def __init__(self, topic: ServedTopic) -> None:
        self._topic = topic
        self._settings: object = None
        self._config = LogConfig()

    def __call__(self) -> LogConfig:
        now = self._topic._entry()["settings"]
        if now is not self._settings:
            self._settings, self._config = now, topic_settings.log_config(now)
        return self._config
