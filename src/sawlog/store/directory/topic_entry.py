"""`TopicEntry`: the content of a topic's `topic.json`, and two files of the catalog's bookkeeping.

```
topics/<name>/topic.json     id, name, partitions, settings, created_ms
deleted.json                 {"epochs": {"orders": 1, "clicks": 4}}: first leader epoch of a recreated topic
topics/<id>.swap/            a topic that is replacing another one
```

Both documents have the format of `sawlog.storage.checksummed`.

**Deleted topics.** The library identifies a topic by its id, but many network clients know only its name: a client that
has read a topic up to offset 50 would continue at 50 of the next topic of that name. A recreated topic therefore starts
in a later leader epoch, and the client's position, which is beyond the end of its epoch, falls back to that end: the
beginning of the new topic (`Epochs`). No record depends on this file: if it is damaged, that is logged and the file is
started over. It keeps the names of the last `_MOST` deletions.

**Replacing topics.** A topic that replaces another one is in `<id>.swap` until it is renamed to the name in its
topic.json. If the process dies in between, readers find the topic there, and the next process that changes the catalog
finishes the replacement.

The caller holds the catalog's lock.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from ...clock import now_ms
from ...errors import CorruptFile, InvalidConfig, StorageError, StorageFull, TopicNotFound
from ...log.epochs import MAX_EPOCH
from ...storage import Directory, checksummed
from ...storage.checksummed import MISSING
from .. import settings
from ..names import DELETED, GONE, SWAP, TMP, TOPIC, check_topic_name, partition_name, partition_number

#: A larger number is almost certainly a typing error: each partition costs files and locks.
MAX_PARTITIONS = 100_000


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """Content of topic.json."""

    id: str
    name: str
    partitions: int
    settings: Mapping[str, settings.Value]
    created_ms: int

    @classmethod
    def new(cls, name: str, partitions: int, given: Mapping[str, object]) -> TopicEntry:
        """Return the entry of a new topic."""
        check_topic_name(name)
        check_partitions(partitions)
        return cls(str(uuid.uuid4()), name, partitions, settings.changed({}, given), now_ms())

    @classmethod
    def load(cls, directory: Directory, name: str) -> TopicEntry:
        """Read topic.json; `TopicNotFound` if the directory is being deleted, `CorruptFile` if the file is missing."""
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
        """Return the partition directories that topic.json does not list: leftovers of an interrupted `alter`."""
        return [
            name
            for name in directory.children()
            if (number := partition_number(name)) is not None and (number >= self.partitions or name.endswith(TMP))
        ]


def check_partitions(number: object) -> None:
    """Raise `InvalidConfig` unless this is a valid number of partitions."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_PARTITIONS:
        raise InvalidConfig(f"partitions must be an integer from 1 to {MAX_PARTITIONS}, not {number!r}")


_MOST = 10_000
_logger = logging.getLogger("sawlog")


def first_epoch(root: Directory, name: str) -> int:
    """Return the leader epoch in which a new topic of this name starts."""
    return _load(root).get(name, 0)


def remember(root: Directory, name: str, last_epoch: int) -> None:
    """Record the epoch that a topic's partitions had reached when it is deleted. Durable on return, unless the disk is
    full."""
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
    """Return the topics that are replacing another one, or were when a process died."""
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
    """Rename every replacing topic to the name in its topic.json, after moving the old topic away."""
    for state, entry in replacing(topics):
        with closing(topics.child(state)) as directory:
            directory.sync()  # its topic.json may be visible and not yet durable
        if entry.name in topics.children():
            with closing(topics.child(entry.name)) as directory:
                old = TopicEntry.load(directory, entry.name)
            topics.rename(entry.name, f"{old.id}{DELETED}")
            topics.sync()
        topics.rename(state, entry.name)
        topics.sync()
