"""`Ledger`: what the broker knows of transactional ids, durable in `transactions/`, a compacted log beside the topics.

```
key     the transactional id
value   {"producer_id": 7, "epoch": 3, "timeout_ms": 60000, "state": "Ongoing", "number": 12, "started_ms": …,
         "changed_ms": …, "partitions": [["orders", "5f0c…", 0]], "offsets": {"billing": [["orders", 0, 120, 4, ""]]}}
```

The last record of a key is valid; one without a value deletes it. What is written is durable before anybody acts on it,
so that a broker that is killed at any moment continues where it was: see transactions.py.

One process has the ledger at a time: a second broker on the same store has no transactions. Methods may wait for the
disk.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ..config import MIB, LogConfig, UpkeepConfig
from ..errors import CorruptBatch
from ..log.log import Log
from ..storage import Directory

NAME = "transactions"
_CONFIG = LogConfig(segment_bytes=MIB)
#: The log is compacted when it has more segments than this.
_SEGMENTS = 4
_UPKEEP = UpkeepConfig(compact=True, delete=False, merge_bytes=0)


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
#: Topic, partition, offset, leader epoch, metadata.
StagedOffset = tuple[str, int, int, int, str]


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

    def encode(self) -> bytes:
        """The value of its record."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """From the value of its record."""
        found: dict[str, Any] = json.loads(data)
        made = cls(**{name: found[name] for name in found if name in cls.__dataclass_fields__})
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


class Ledger:
    """The log, opened for writing: `DirectoryLocked` if another broker has it."""

    def __init__(self, root: Directory) -> None:
        self._directory = root.child(NAME, create=True)
        self._log = Log.open(self._directory, _CONFIG)

    def load(self) -> dict[str, Entry]:
        """All transactional ids. What is damaged is left out: its clients begin again."""
        found: dict[str, Entry] = {}
        position = self._log.lowest_offset
        while position < self._log.visible_offset:
            try:
                for record in self._log.scan(position):
                    position = record.offset + 1
                    self._apply(found, record.key or b"", record.value)
                break
            except CorruptBatch as error:
                position = self._log.visible_offset if error.next_offset is None else error.next_offset
        return found

    @staticmethod
    def _apply(found: dict[str, Entry], key: bytes, value: bytes | None) -> None:
        name = key.decode("utf-8", "replace")
        if value is None:
            found.pop(name, None)
        else:
            found[name] = Entry.decode(value)

    def save(self, name: str, value: bytes | None) -> None:
        """Write an entry, or with None delete it; durable when this returns."""
        self._log.append(value, name.encode())
        if len(self._log.segments) > _SEGMENTS and self._log.upkeep_due(_UPKEEP):
            self._log.upkeep(_UPKEEP)

    def close(self) -> None:
        """Close it."""
        try:
            self._log.close()
        finally:
            self._directory.close()
