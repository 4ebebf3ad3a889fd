"""Positions: the progress of a query in every partition, and in which history of it.

Spark keeps them in its checkpoint, as JSON. The offsets are where Spark's Kafka source has them, so that tools that
know those find them. Everything else is under one reserved key, which no topic can have as its name:

```
{"orders": {"0": 1200, "1": 1180},
 "$sawlog": {"store": "0b5c…",                       the store's id
             "topics": {"orders": "5f0c…"},           the ids of the topics
             "epochs": {"orders": {"0": 3, "1": 3}}}} the leader epochs in which the offsets were looked up
```

An offset alone does not identify what was read: a log that was truncated reuses offsets for other records, and a topic
that was deleted and recreated counts from 0 again. With epochs and ids both are detected (see ranges.py). What is not
known is left out: version 0.2 wrote offsets only, and its checkpoints still work.

Spark runs a micro-batch whenever the text of the JSON changes. So a partition of which nothing is read keeps its entry
unchanged (`Positions.after`), whatever its log's current epoch is.

`Positions` is a value: do not modify it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..store.assignment import Share

__all__ = ["RESERVED", "UNKNOWN", "EpochPosition", "Json", "Positions", "Share"]

#: As Spark stores them.
Json = dict[str, Any]

#: The key for what is not an offset.
RESERVED = "$sawlog"
#: The epoch of a position that has none: such a position is checked against the end of the log only.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """The next offset to be read in a partition, and the leader epoch in which it was looked up."""

    offset: int
    epoch: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for every partition; ids of topics and of the store, as far as they are known."""

    at: Mapping[Share, EpochPosition] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None

    @classmethod
    def from_json(cls, found: Json | None) -> Positions:
        """From Spark's checkpoint."""
        given = dict(found or {})
        more = given.pop(RESERVED, {})
        epochs = more.get("epochs", {})
        at = {
            (topic, int(number)): EpochPosition(offset, epochs.get(topic, {}).get(number, UNKNOWN))
            for topic, each in given.items()
            for number, offset in each.items()
        }
        return cls(at, dict(more.get("topics", {})), more.get("store"))

    def to_json(self) -> Json:
        """For Spark's checkpoint."""
        made = self.offsets()
        epochs: Json = {}
        for (topic, number), position in sorted(self.at.items()):
            if position.epoch != UNKNOWN:
                epochs.setdefault(topic, {})[str(number)] = position.epoch
        if epochs or self.topics or self.store is not None:
            made[RESERVED] = {"store": self.store, "topics": dict(sorted(self.topics.items())), "epochs": epochs}
        return made

    def offsets(self) -> Json:
        """Only the offsets, as Kafka's source has them."""
        made: Json = {}
        for (topic, number), position in sorted(self.at.items()):
            made.setdefault(topic, {})[str(number)] = position.offset
        return made

    def over(self, other: Positions) -> Positions:
        """These, and those of others for partitions that these have not."""
        return Positions({**other.at, **self.at}, other.topics, other.store)

    def is_recreated(self, topic: str, topic_id: str, store_id: str) -> bool:
        """Whether the current topic of that name in the store is not the one of these positions."""
        if self.store is not None and self.store != store_id:
            return True
        return self.topics.get(topic, topic_id) != topic_id

    def after(
        self, moved: Mapping[Share, EpochPosition], now: Positions, begun: Mapping[Share, EpochPosition]
    ) -> Positions:
        """These, with the partitions that have `moved`, in the store and the topics as they are `now`.

        The others keep their entry. `begun` are the starts of all partitions of topics that were recreated: next to a
        new id their old entries would have another meaning, so they are removed. If nothing has moved, nothing changes.
        """
        if not moved:
            return self
        recreated = {topic for topic, _ in begun}
        kept = {share: position for share, position in self.at.items() if share[0] not in recreated}
        return Positions({**kept, **begun, **moved}, {**self.topics, **now.topics}, now.store)
