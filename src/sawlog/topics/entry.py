"""`TopicEntry`: the content of a topic's `topic.json`, read and written.

```
topics/<name>/topic.json     id, name, partitions, settings, created_ms: see documents.py for the format
```
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from ..clock import now_ms
from ..errors import CorruptFile, InvalidConfig, StorageError, TopicNotFound
from ..storage import Directory, documents
from ..storage.documents import MISSING
from . import settings
from .names import TMP, TOPIC, check_topic_name, partition_name, partition_number

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
            fields = documents.load(directory, TOPIC)
        except StorageError as error:
            if error.errno not in MISSING:
                raise
            if partition_name(0) not in directory.children():  # moved away by a process that deletes it
                raise TopicNotFound(f"no topic {name!r}: {directory.path} holds none") from error
            raise CorruptFile(f"{path} is missing; restore it from a copy") from error
        entry = cls(
            documents.field(fields, "id", str, path),
            documents.field(fields, "name", str, path),
            documents.field(fields, "partitions", int, path),
            documents.field(fields, "settings", dict, path),
            documents.field(fields, "created_ms", int, path),
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
        documents.store(directory, TOPIC, fields)

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
