"""`ServedTopic`: a topic on object storage, as it was folded last. Nothing of it asks the bucket."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from ....config import LogConfig
from ....errors import TopicNotFound
from ... import settings as topic_settings
from ...settings import Value
from ..partition.partition import ObjectPartition
from ..session import Core
from .partition import ServedPartition


class ServedTopic:
    """The topic that had the name when it was looked up."""

    def __init__(self, core: Core, threads: Executor, name: str, entry: Mapping[str, Any]) -> None:
        self._core = core
        self._threads = threads
        self._known = entry
        self.name = name
        self.id = str(entry["id"])
        self._logs: dict[int, ServedPartition] = {}

    def _entry(self) -> Mapping[str, Any]:
        """What is known of it; what was known last, if it was deleted."""
        found = self._core.peek(lambda state: state.topic(self.name))
        if found is not None and found["id"] == self.id:
            self._known = found
        return self._known

    @property
    def partitions(self) -> int:
        """How many there are."""
        return int(self._entry()["partitions"])

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that differ from their defaults."""
        return dict(self._entry()["settings"])

    @property
    def config(self) -> LogConfig:
        """How its partitions are kept."""
        return topic_settings.log_config(self._entry()["settings"])

    def partition(self, number: int) -> ServedPartition:
        """One partition."""
        found = self._logs.get(number)
        if found is not None:
            return found
        if not 0 <= number < self.partitions:
            raise TopicNotFound(f"the topic {self.name!r} has partitions 0 to {self.partitions - 1}, not {number}")
        config = _Kept(self)
        below = ObjectPartition(self._core, self.name, self.id, number, self.config)
        made = ServedPartition(self._core, self._threads, below, self.name, self.id, number, config)
        return self._logs.setdefault(number, made)

    def append_batches(self, raw: memoryview, partition: int, *, trusted: bool = False) -> range:
        """Append, and wait for the commit."""
        return self.partition(partition)._place_batches(raw, trusted=trusted).result()


class _Kept:
    """A topic's config, made again when its settings change: it is needed for every batch."""

    def __init__(self, topic: ServedTopic) -> None:
        self._topic = topic
        self._settings: object = None
        self._config = LogConfig()

    def __call__(self) -> LogConfig:
        now = self._topic._entry()["settings"]
        if now is not self._settings:
            self._settings, self._config = now, topic_settings.log_config(now)
        return self._config
