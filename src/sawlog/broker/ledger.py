"""`Entry`: what brokers know of a transactional id. The store keeps it (`sawlog.store.served.Ledger`):

```
{"producer_id": 7, "epoch": 3, "timeout_ms": 60000, "state": "Ongoing", "number": 12, "started_ms": …,
 "changed_ms": …, "partitions": [["orders", "5f0c…", 0]], "offsets": {"billing": [["orders", 0, 120, 4, ""]]}}
```

What is stored is durable before anybody acts on it, so that a broker that is killed at any moment, or another one,
continues where it was: see transactions.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ..store.served import StagedOffset


class State(StrEnum):
    """Where a transaction is, in Kafka's words."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_decided(self) -> bool:
        """Whether its outcome is durable, and it is not complete."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)


#: Topic, its id, partition.
Place = tuple[str, str, int]


@dataclass(slots=True)
class Entry:
    """One transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    #: The epoch with which its producer asked for the current one; it asks again if the answer is lost. -1: none.
    last_epoch: int = -1
    state: State = State.EMPTY
    #: How many transactions it has begun: with the id, a name for each.
    number: int = 0
    started_ms: int = -1
    changed_ms: int = -1
    partitions: list[Place] = field(default_factory=list)
    #: By group.
    offsets: dict[str, list[StagedOffset]] = field(default_factory=dict)

    #: Of which version of the stored entry it is made; 0 if there is none.
    version: int = 0

    def fields(self) -> dict[str, Any]:
        """What is stored of it."""
        made = asdict(self)
        del made["version"]
        made["state"] = self.state.value
        return made

    @classmethod
    def of(cls, version: int, found: Mapping[str, Any]) -> Entry:
        """From what is stored."""
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
