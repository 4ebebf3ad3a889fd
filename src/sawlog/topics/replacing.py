"""Topics that take the place of another: their directory is `<id>.swap` until it gets the name in its topic.json.

A process that dies in between leaves it: readers find the topic there, and the next one who changes the store finishes
it.
"""

from __future__ import annotations

from ..errors import StorageError, TopicNotFound
from ..storage import Directory
from ..storage.documents import MISSING
from .entry import TopicEntry
from .names import DELETED, SWAP


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
