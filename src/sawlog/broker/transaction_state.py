"""`Entry`: the state of a transactional id, as brokers store it (`sawlog.store.serving.TransactionalIds`):

```
{"producer_id": 7, "epoch": 3, "timeout_ms": 60000, "state": "Ongoing", "number": 12, "started_ms": …,
 "changed_ms": …, "partitions": [["orders", "5f0c…", 0]], "offsets": {"billing": [["orders", 0, 120, 4, ""]]}}
```

An entry is durable before a broker acts on it, so a broker that is killed at any moment, or its successor, continues
from there: see transactions.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ..store.serving import StagedOffset


class State(StrEnum):
    """The state of a transaction, by Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is durable but not complete."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)


#: Topic, topic id, partition.
Place = tuple[str, str, int]


@dataclass(slots=True)
class Entry:
    """One transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    #: Epoch with which the producer requested the current one; it retries if the response is lost. -1 if none.
    last_epoch: int = -1
    state: State = State.EMPTY
    #: Number of transactions begun; with the id, it identifies each.
    number: int = 0
    started_ms: int = -1
    changed_ms: int = -1
    partitions: list[Place] = field(default_factory=list)
    #: By group.
    offsets: dict[str, list[StagedOffset]] = field(default_factory=dict)

    #: Version of the stored entry; 0 if there is none.
    version: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the stored fields."""
        made = asdict(self)
        del made["version"]
        made["state"] = self.state.value
        return made

    @classmethod
    def of(cls, version: int, found: Mapping[str, Any]) -> Entry:
        """Decode a stored entry."""
        made = cls(**{name: found[name] for name in found if name in cls.__dataclass_fields__})
        made.version = version
        made.state = State(made.state)
        made.partitions = [(str(topic), str(topic_id), int(number)) for topic, topic_id, number in made.partitions]
        made.offsets = {
            group: [(str(t), int(p), int(o), int(e), str(m)) for t, p, o, e, m in offsets]
            for group, offsets in made.offsets.items()
        }
        return made

    def includes(self, topic: str, partition: int) -> bool:
        """Whether a partition was added to the transaction."""
        return any((name, number) == (topic, partition) for name, _, number in self.partitions)
