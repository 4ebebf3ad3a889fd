"""Detect which system wrote a directory, and open the logs in it.

Each format looks for files that it would have written: names first, then the first bytes, which must agree with the
names. Evidence that only one format produces (a matching checksum, a magic number) makes a detection certain, and
uncertain candidates are then ignored. If several candidates remain, `UnknownFormat` lists them.

A format recognises a single log (`Sniff`). `detect_below` and `detect_topics` apply that to a directory and to the
directories below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import Literal, Unpack

from ..errors import InvalidConfig, UnknownFormat
from ..storage import Directory, FileDirectory
from .foreign import Damage, Decoder, Detection, ForeignLog, Format, LogLocation, OpenOptions

#: The modules of this package that provide a format, each as its `FORMAT`.
_MODULES = ("kafka", "laminarmq", "rustlog", "gumlog", "plain")
#: Marks a sawlog store, which needs no import.
_STORE_FILE = "sawlog.json"
#: Maximum number of directories to examine.
_MAX_DIRECTORIES = 10_000
_PARTITION = re.compile(r"(?:partition-)?([0-9]{1,9})")


def formats() -> tuple[Format, ...]:
    """Return all formats, in the order in which they are tried."""
    return tuple(import_module(f".{name}", __package__).FORMAT for name in _MODULES)


def format_named(name: str) -> Format:
    """Return the format of that name; `InvalidConfig` if it does not exist."""
    for each in formats():
        if each.name == name:
            return each
    raise InvalidConfig(f"unknown format {name!r}; use one of {', '.join(each.name for each in formats())}")


# --- detecting


def detect(path: str | PathLike[str] | Directory, *, format: str | None = None) -> Detection | None:
    """Return the logs in a directory: one log, a topic or a server's data; None if no supported system wrote it.

    With `format` only that format is tried. Raises `UnknownFormat` if several formats are possible.
    """
    if isinstance(path, (str, PathLike)):
        with closing(FileDirectory(path, create=False)) as directory:
            return detect(directory, format=format)
    candidates = formats() if format is None else (format_named(format),)
    if path.exists(_STORE_FILE):
        raise UnknownFormat(f"{path.path} is a sawlog store: open it with sawlog.open")
    found = [seen for each in candidates if (seen := each.detect(path)) is not None]
    best = [seen for seen in found if seen.certain] or found
    if len(best) > 1:
        raise UnknownFormat(f"{path.path} may be {' or '.join(seen.format for seen in best)}: give the format")
    return best[0] if best else None


def detect_required(path: str | PathLike[str] | Directory, format: str | None) -> Detection:
    """Detect, and raise `UnknownFormat` if nothing is found."""
    found = detect(path, format=format)
    if found is None:
        where = path if isinstance(path, (str, PathLike)) else path.path
        tried = format or ", ".join(each.name for each in formats())
        raise UnknownFormat(f"{where} holds no log of a supported system (looked for: {tried})")
    return found


def detect_or_assume(path: str | PathLike[str], format: str | None) -> Detection:
    """Detect; if the caller names a format and detection fails, treat the path as one log of that format."""
    if format is None:
        return detect_required(path, None)
    found = detect(path, format=format)
    return found or Detection(format, "partition", str(path), (LogLocation(str(path)),), "named by the caller", False)


# --- opening


def open_log(
    path: str | PathLike[str] | Directory,
    *,
    format: str | None = None,
    damage: Damage = "stop",
    strict: bool = False,
    metadata: Decoder | None = None,
) -> ForeignLog:
    """Open the log in a directory, read only: `sawlog.interop.open`.

    Without `format` the format is detected. At records that cannot be read, a scan raises, or, with `damage="skip"`,
    continues after them. With `strict` every finding raises the error of its kind. `metadata` is for laminarmq with
    metadata other than `()`: it gets the bytes of a record's metadata and returns the index in it, returns None if
    there is none, or raises `ValueError`.
    """
    if format is None:
        found = detect_required(path, None)
        if len(found.logs) != 1:
            some = ", ".join(location.path for location in found.logs[:3])
            raise UnknownFormat(f"{found.path} holds {len(found.logs)} logs of {found.format}: open one of {some}, ...")
        format = found.format
        if isinstance(path, (str, PathLike)):
            path = found.logs[0].path
    if isinstance(path, (str, PathLike)):  # not detected again: the caller may know better than the first bytes show
        return open_location(LogLocation(str(path)), format, damage=damage, strict=strict, metadata=metadata)
    return _open(path, format, damage=damage, strict=strict, metadata=metadata)


def open_location(location: LogLocation, format: str, **options: Unpack[OpenOptions]) -> ForeignLog:
    """Open the log at a detected location."""
    directory = FileDirectory(location.path, create=False)
    try:
        return _open(directory, format, **options)
    except BaseException:
        directory.close()
        raise


def _open(directory: Directory, name: str, **options: Unpack[OpenOptions]) -> ForeignLog:
    format = format_named(name)
    if options.get("metadata") is not None and not format.has_metadata:
        raise InvalidConfig(f"records of {name} have no metadata to decode: omit `metadata`")
    return format.log(directory, **options)


# --- for the formats


@dataclass(frozen=True, slots=True)
class Sniffed:
    """Evidence that a directory is a log of one format, and True if only that format could have produced it."""

    why: str
    certain: bool


#: Recognises one log of a format.
Sniff = Callable[[Directory], Sniffed | None]


def detect_below(format: str, sniff: Sniff, directory: Directory) -> Detection | None:
    """Detect one log, or a directory of logs, each named after its directory."""
    seen = sniff(directory)
    if seen is not None:
        return Detection(format, "partition", directory.path, (LogLocation(directory.path),), seen.why, seen.certain)
    found: list[tuple[LogLocation, Sniffed]] = []
    for name in directory.children()[:_MAX_DIRECTORIES]:
        with closing(directory.child(name)) as child:
            below = sniff(child)
            if below is not None:
                found.append((LogLocation(child.path, name, 0), below))
    return _combined("data", format, directory, found)


def detect_topics(format: str, sniff: Sniff, directory: Directory) -> Detection | None:
    """Detect `partition-<n>` below a topic's directory, and topics below `topics`, from any of these levels."""
    seen = sniff(directory)
    if seen is not None:
        topic, partition = _partition_of(directory.path)
        location = LogLocation(directory.path, topic, partition)
        return Detection(format, "partition", directory.path, (location,), seen.why, seen.certain)
    found = list(_partitions(directory, directory.path.rstrip("/").rpartition("/")[2], sniff))
    if found:
        return _combined("topic", format, directory, found)
    if "topics" in directory.children():
        with closing(directory.child("topics")) as topics:
            found = list(_topics(topics, sniff))
    return _combined("data", format, directory, found or list(_topics(directory, sniff)))


def _topics(directory: Directory, sniff: Sniff) -> Iterator[tuple[LogLocation, Sniffed]]:
    for name in directory.children()[:_MAX_DIRECTORIES]:
        with closing(directory.child(name)) as child:
            yield from _partitions(child, name, sniff)


def _partition_of(path: str) -> tuple[str | None, int]:
    """Return topic and partition of a path that ends in `<topic>/partition-<n>` or `<topic>/partitions/<n>`."""
    *_, above, topic, last = ("", "", *path.rstrip("/").split("/"))
    match = _PARTITION.fullmatch(last)
    if match is None or not topic:
        return None, 0
    return (above if topic == "partitions" else topic) or None, int(match[1])


def _partitions(directory: Directory, topic: str, sniff: Sniff) -> Iterator[tuple[LogLocation, Sniffed]]:
    children = directory.children()
    if "partitions" in children:
        with closing(directory.child("partitions")) as below:
            yield from _partitions(below, topic, sniff)
    for name in children[:_MAX_DIRECTORIES]:
        match = _PARTITION.fullmatch(name)
        if match is not None:
            with closing(directory.child(name)) as child:
                seen = sniff(child)
                if seen is not None:
                    yield LogLocation(child.path, topic, int(match[1])), seen


def _combined(
    kind: Literal["topic", "data"], format: str, directory: Directory, found: list[tuple[LogLocation, Sniffed]]
) -> Detection | None:
    """Combine several logs into one detection; None if there are none."""
    if not found:
        return None
    locations = sorted((location for location, _ in found), key=lambda each: (each.topic or "", each.partition))
    certain = any(seen.certain for _, seen in found)
    why = next((seen.why for _, seen in found if seen.certain), found[0][1].why)
    return Detection(format, kind, directory.path, tuple(locations), why, certain)


def read_start(directory: Directory, name: str, max_bytes: int) -> bytes:
    """Return the first bytes of a file."""
    with closing(directory.open_shared(name)) as storage:
        return storage.read(0, min(storage.size, max_bytes))
