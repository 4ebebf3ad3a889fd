"""Where the logs of a system are below a directory: the part of detection that deals with names.

A format recognises one log (`sniff`). Here a directory is checked with it, and if it is not a log, the directories
below it are, in the way the system arranges them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from ..storage import Directory
from .foreign import Detection, Place

#: The maximum number of directories to examine.
_MOST_DIRECTORIES = 10_000


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What the files of a directory look like, in a few words, and whether only this format looks like that."""

    why: str
    certain: bool


Sniff = Callable[[Directory], Sniffed | None]


def detect_below(format: str, directory: Directory, sniff: Sniff) -> Detection | None:
    """One log, or a directory of logs, each named after its directory."""
    seen = sniff(directory)
    if seen is not None:
        return Detection(format, "partition", directory.path, (Place(directory.path),), seen.why, seen.certain)
    found: list[tuple[Place, Sniffed]] = []
    for name in directory.children()[:_MOST_DIRECTORIES]:
        with child_of(directory, name) as child:
            below = sniff(child)
            if below is not None:
                found.append((Place(child.path, name, 0), below))
    return detection("data", format, directory, found)


def detect_topics(format: str, directory: Directory, sniff: Sniff) -> Detection | None:
    """`partition-<n>` below a topic's directory, and topics below `topics`; from any of these levels."""
    seen = sniff(directory)
    if seen is not None:
        topic, partition = _named(directory.path)
        place = Place(directory.path, topic, partition)
        return Detection(format, "partition", directory.path, (place,), seen.why, seen.certain)
    name = directory.path.rstrip("/").rpartition("/")[2]
    found = list(_partitions(directory, name, sniff))
    if found:
        return detection("topic", format, directory, found)
    for below in ("topics", ""):
        if below in directory.children() or not below:
            with child_of(directory, below) as topics:
                for each in topics.children()[:_MOST_DIRECTORIES]:
                    with child_of(topics, each) as child:
                        found.extend(_partitions(child, each, sniff))
        if found:
            return detection("data", format, directory, found)
    return None


_PARTITION = re.compile(r"(?:partition-)?([0-9]{1,9})")


def _named(path: str) -> tuple[str | None, int]:
    """Topic and partition of a path that ends in `<topic>/partition-<n>` or `<topic>/partitions/<n>`."""
    *_, above, topic, last = ("", "", *path.rstrip("/").split("/"))
    match = _PARTITION.fullmatch(last)
    if match is None or not topic:
        return None, 0
    return (above if topic == "partitions" else topic) or None, int(match[1])


def _partitions(directory: Directory, topic: str, sniff: Sniff) -> Iterator[tuple[Place, Sniffed]]:
    children = directory.children()
    if "partitions" in children:
        with child_of(directory, "partitions") as below:
            yield from _partitions(below, topic, sniff)
    for name in children[:_MOST_DIRECTORIES]:
        match = _PARTITION.fullmatch(name)
        if match is not None:
            with child_of(directory, name) as child:
                seen = sniff(child)
                if seen is not None:
                    yield Place(child.path, topic, int(match[1])), seen


def detection(
    kind: Literal["topic", "data"], format: str, directory: Directory, found: list[tuple[Place, Sniffed]]
) -> Detection | None:
    """Several logs as one detection; None if there are none."""
    if not found:
        return None
    places = sorted((place for place, _ in found), key=lambda place: (place.topic or "", place.partition))
    certain = any(seen.certain for _, seen in found)
    why = next((seen.why for _, seen in found if seen.certain), found[0][1].why)
    return Detection(format, kind, directory.path, tuple(places), why, certain)


@contextmanager
def child_of(directory: Directory, name: str) -> Iterator[Directory]:
    """A directory below another, closed at exit; "" is the directory itself."""
    if not name:
        yield directory
        return
    child = directory.child(name)
    try:
        yield child
    finally:
        child.close()


def beginning(directory: Directory, name: str, most_bytes: int) -> bytes:
    """The first bytes of a file, at most that many."""
    storage = directory.open_shared(name)
    try:
        return storage.read(0, min(storage.size, most_bytes))
    finally:
        storage.close()
