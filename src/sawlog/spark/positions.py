"""Positions of a query: the next offset of every partition, and the leader epoch it was read in.

Spark keeps them in its checkpoint as JSON. Offsets have the same place as in Spark's Kafka source, so that existing
tools find them. Everything else is under one reserved key, which cannot be a topic's name:

```
{"orders": {"0": 1200, "1": 1180},
 "$sawlog": {"store": "0b5c…",                       the store's id
             "topics": {"orders": "5f0c…"},           the ids of the topics
             "epochs": {"orders": {"0": 3, "1": 3}}}} the leader epochs in which the offsets were looked up
```

An offset alone does not identify the records before it: a truncated log reuses offsets for other records, and a topic
that was deleted and recreated counts from 0 again. Epochs and ids reveal both (see ranges.py). Unknown values are left
out: version 0.2 wrote offsets only, and its checkpoints still work.

Spark runs a micro-batch whenever the text of the JSON changes. So a partition that is not read keeps its entry
unchanged (`Positions.after`), whatever its log's current epoch is.

`Positions` is a value: do not modify it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..store.assignment import Share

__all__ = ["RESERVED", "UNKNOWN", "EpochPosition", "Json", "Positions", "Share"]

#: Positions as Spark stores them.
Json = dict[str, Any]

#: The key for everything but offsets.
RESERVED = "$sawlog"
#: The epoch of a position without one: such a position is checked only against the end of the log.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """The next offset to read in a partition, and the leader epoch in which it was looked up."""

    offset: int
    epoch: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for every partition, with the ids of topics and store where known."""

    at: Mapping[Share, EpochPosition] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None

    @classmethod
    def from_json(cls, found: Json | None) -> Positions:
        """Parse the JSON of Spark's checkpoint."""
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
        """Format for Spark's checkpoint."""
        made = self.offsets()
        epochs: Json = {}
        for (topic, number), position in sorted(self.at.items()):
            if position.epoch != UNKNOWN:
                epochs.setdefault(topic, {})[str(number)] = position.epoch
        if epochs or self.topics or self.store is not None:
            made[RESERVED] = {"store": self.store, "topics": dict(sorted(self.topics.items())), "epochs": epochs}
        return made

    def offsets(self) -> Json:
        """Return the offsets alone, as Kafka's source formats them."""
        made: Json = {}
        for (topic, number), position in sorted(self.at.items()):
            made.setdefault(topic, {})[str(number)] = position.offset
        return made

    def over(self, other: Positions) -> Positions:
        """Fill in the partitions that are missing here from `other`."""
        return Positions({**other.at, **self.at}, other.topics, other.store)

    def is_recreated(self, topic: str, topic_id: str, store_id: str) -> bool:
        """Return whether the store's current topic of that name is a different one from the topic of these
        positions."""
        if self.store is not None and self.store != store_id:
            return True
        return self.topics.get(topic, topic_id) != topic_id

    def after(
        self, moved: Mapping[Share, EpochPosition], now: Positions, begun: Mapping[Share, EpochPosition]
    ) -> Positions:
        """Advance the partitions that have `moved`, with the ids that the store and the topics have `now`.

        The others keep their entry. `begun` holds the starts of all partitions of recreated topics: next to a new id,
        their old entries would mean something else, so they are replaced. If nothing has moved, nothing changes.
        """
        if not moved:
            return self
        recreated = {topic for topic, _ in begun}
        kept = {share: position for share, position in self.at.items() if share[0] not in recreated}
        return Positions({**kept, **begun, **moved}, {**self.topics, **now.topics}, now.store)
