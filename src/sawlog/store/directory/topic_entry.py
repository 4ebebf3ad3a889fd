"""`TopicEntry`: the content of a topic's `topic.json`, read and written.

```
topics/<name>/topic.json     id, name, partitions, settings, created_ms: see documents.py for the format
```

What is remembered of deleted topics: the leader epoch in which a topic of that name begins, should it be recreated.

```
deleted.json     {"epochs": {"orders": 1, "clicks": 4}}: see documents.py for the format
```

The library knows a topic by its id. Many clients of the network know it by its name only, and one that has read a topic
up to offset 50 would continue at 50 of the next topic of that name. So that one begins in a later epoch: then the
client's position is beyond the end of its epoch, and goes back to that end, which is the beginning (`Epochs`).

It is a help for clients, no record depends on it: a damaged file is logged and begun again. The names of the last
`_MOST` deletions are kept.

Threads: whoever holds the catalog's lock.

Topics that take the place of another: their directory is `<id>.swap` until it gets the name in its topic.json.

A process that dies in between leaves it: readers find the topic there, and the next one who changes the store finishes
it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from ...clock import now_ms
from ...errors import CorruptFile, InvalidConfig, StorageError, StorageFull, TopicNotFound
from ...log.epochs import MAX_EPOCH
from ...storage import Directory, checksummed
from ...storage.checksummed import MISSING
from .. import settings
from ..names import DELETED, GONE, SWAP, TMP, TOPIC, check_topic_name, partition_name, partition_number

#: More partitions than this in one topic are a typing error: each costs files and locks.
MAX_PARTITIONS = 100_000


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """The content of topic.json."""

    id: str
    name: str
    partitions: int
    settings: Mapping[str, settings.Value]
    created_ms: int

    @classmethod
    def new(cls, name: str, partitions: int, given: Mapping[str, object]) -> TopicEntry:
        """The entry of a new topic."""
        check_topic_name(name)
        check_partitions(partitions)
        return cls(str(uuid.uuid4()), name, partitions, settings.changed({}, given), now_ms())

    @classmethod
    def load(cls, directory: Directory, name: str) -> TopicEntry:
        """Read it; `TopicNotFound` if the directory is being deleted, `CorruptFile` if the file is missing."""
        path = f"{directory.path}/{TOPIC}"
        try:
            fields = checksummed.load(directory, TOPIC)
        except StorageError as error:
            if error.errno not in MISSING:
                raise
            if partition_name(0) not in directory.children():  # moved away by a process that deletes it
                raise TopicNotFound(f"no topic {name!r}: {directory.path} holds none") from error
            raise CorruptFile(f"{path} is missing; restore it from a copy") from error
        entry = cls(
            checksummed.field(fields, "id", str, path),
            checksummed.field(fields, "name", str, path),
            checksummed.field(fields, "partitions", int, path),
            checksummed.field(fields, "settings", dict, path),
            checksummed.field(fields, "created_ms", int, path),
        )
        if not 1 <= entry.partitions <= MAX_PARTITIONS:
            raise CorruptFile(f"{path}: a topic has 1 to {MAX_PARTITIONS:,} partitions, not {entry.partitions}")
        return entry

    def store(self, directory: Directory) -> None:
        """Replace topic.json, durably."""
        fields = {
            "id": self.id,
            "name": self.name,
            "partitions": self.partitions,
            "settings": dict(self.settings),
            "created_ms": self.created_ms,
        }
        checksummed.store(directory, TOPIC, fields)

    def extra_in(self, directory: Directory) -> list[str]:
        """Partitions that are not in topic.json: they were being added."""
        return [
            name
            for name in directory.children()
            if (number := partition_number(name)) is not None and (number >= self.partitions or name.endswith(TMP))
        ]


def check_partitions(number: object) -> None:
    """Raise `InvalidConfig` unless a topic can have that many."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_PARTITIONS:
        raise InvalidConfig(f"partitions must be an integer from 1 to {MAX_PARTITIONS}, not {number!r}")


_MOST = 10_000
_logger = logging.getLogger("sawlog")


def first_epoch(root: Directory, name: str) -> int:
    """The leader epoch in which a new topic of this name begins."""
    return _load(root).get(name, 0)


def remember(root: Directory, name: str, last_epoch: int) -> None:
    """A topic is about to be deleted whose partitions have come to this epoch. Durable when it returns, unless the disk
    is full."""
    epochs = dict(_load(root))
    following = max(epochs.pop(name, 0), min(last_epoch + 1, MAX_EPOCH))
    kept = list(epochs.items())[-(_MOST - 1) :]
    try:
        checksummed.store(root, GONE, {"epochs": {**dict(kept), name: following}})
    except StorageFull as error:  # deleting a topic is how a disk gets room again
        _logger.error("the epoch of the deleted topic %s is not remembered: %s", name, error)


def _load(root: Directory) -> Mapping[str, int]:
    if not root.exists(GONE):
        return {}
    path = f"{root.path}/{GONE}"
    try:
        found = checksummed.field(checksummed.load(root, GONE), "epochs", dict, path)
        for name, epoch in found.items():
            if type(epoch) is not int or not 0 <= epoch <= MAX_EPOCH:
                raise CorruptFile(f"{path}: the epoch of {name!r} is {epoch!r}")
    except CorruptFile as error:
        _logger.error("the epochs of deleted topics are not known: %s", error)
        return {}
    return found


def replacing(topics: Directory) -> list[tuple[str, TopicEntry]]:
    """Topics that are about to replace another one, or that were when a process died."""
    found: list[tuple[str, TopicEntry]] = []
    for name in topics.children():
        if not name.endswith(SWAP):
            continue
        try:
            directory = topics.child(name)
        except StorageError as error:
            if error.errno not in MISSING:
                raise
            continue  # already renamed
        try:
            found.append((name, TopicEntry.load(directory, name)))
        except TopicNotFound:
            continue
        finally:
            directory.close()
    return found


def finish_replacing(topics: Directory) -> None:
    """Rename every topic that is replacing another to the name in its topic.json, and remove the old one from there."""
    for state, entry in replacing(topics):
        directory = topics.child(state)
        try:
            directory.sync()  # its topic.json may be visible and not yet durable
        finally:
            directory.close()
        if entry.name in topics.children():
            directory = topics.child(entry.name)
            try:
                old = TopicEntry.load(directory, entry.name)
            finally:
                directory.close()
            topics.rename(entry.name, f"{old.id}{DELETED}")
            topics.sync()
        topics.rename(state, entry.name)
        topics.sync()
