"""The changes that a run made to its files, call by call, and the states that a power cut before each call can leave.

`syscalls.recording` makes a `History`; `PowerCut` chooses a state, and `lay_out` creates a directory with it.

**Durable changes.** A file's writes and cuts are durable after an fsync of that file, which says nothing about the
file's name. A change of names is durable after an fsync of a directory that it concerns, which says nothing about the
content of files. A rename is one change, also between two directories.

**A power cut** before a call keeps everything durable. Of the pending changes of names,

    none       none reached the disk
    all        all did
    prefix     all up to some moment did
    subset     any of them did

and of the pending writes and cuts, independently,

    none       none reached the disk
    all        all did
    prefix     all up to some moment did, the write of that moment up to some byte; for names and data the same moment
    sectors    each sector (512 bytes) has the content of any moment, and the file the size of any moment
    zeros      the file has the size of any moment, and none of the bytes
    noise      as sectors, but a sector whose write is missing contains random bytes

A file may have several names (`link`), each of which can be renamed and removed separately. Durable bytes survive a
write to other bytes of their sector.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .device import Write, set_size

NAMES = ("none", "all", "prefix", "subset")
DATA = ("none", "all", "prefix", "sectors", "zeros", "noise")

#: path -> content; the path of a directory ends with a slash.
Tree = dict[str, bytes]

_SECTOR_BYTES = 512
#: Probabilities that a pending change has reached the disk; one of them for each power cut.
_ODDS = (0.15, 0.5, 0.85)
_NEVER = 1 << 62


# --- what happened


class File:
    """The content of one file: when recording began, now, and all that was written in between."""

    def __init__(self, name: str, content: bytes = b"") -> None:
        #: The last one that it had.
        self.name = name
        self.before = content
        self.now = bytearray(content)
        self.writes: list[Write] = []
        #: (number of the fsync, how many writes it made durable)
        self.syncs: list[tuple[int, int]] = []

    def durable_writes(self, call: int) -> int:
        """Count the writes that were durable before the call."""
        return max((count for number, count in self.syncs if number < call), default=0)


class Folder:
    """The names in one directory: when recording began, and now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.before: dict[str, Node] = {}
        self.now: dict[str, Node] = {}


Node = File | Folder
#: A directory, and a name in it.
Place = tuple[Folder, str]
#: A name of a node, whatever it is by now: where it was before the first call, or the number of the call that made it.
Link = Place | int


@dataclass(slots=True)
class Change:
    """A change of names, all of it or nothing."""

    number: int
    #: (directory, name, the node bound to it)
    parts: Sequence[tuple[Folder, str, Node | None]]
    #: The name of the node; it stays the same when it is renamed.
    link: Link
    #: The fsync that made it durable.
    settled: int = _NEVER


@dataclass
class History:
    """All calls of a run, in their order. They are counted from 1."""

    root: Folder
    #: "pwrite 00000000000000000000.log", and so on.
    calls: list[str] = field(default_factory=list)
    folders: list[Folder] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    _links: dict[Place, Link] = field(default_factory=dict)
    #: Called before a call is noted.
    before_call: Callable[[], None] = lambda: None

    def write(self, call: str, file: File, position: int, data: bytes | None) -> None:
        """Bytes are written; without data, the file is cut or extended to `position`."""
        number = self._note(call, file)
        made = Write(number, position, data)
        file.writes.append(made)
        _land(file.now, made)

    def change(self, call: str, *parts: tuple[Folder, str, Node | None]) -> None:
        """Names are made, replaced or removed."""
        folder, name, node = parts[-1]
        number = self._note(call, node or folder.now[name])
        link: Link = number
        for folder, name, node in parts:
            if node is None:
                del folder.now[name]
                link = self._links.pop((folder, name), (folder, name))
            else:
                folder.now[name], node.name = node, name
                self._links[folder, name] = link
        self.changes.append(Change(number, parts, link))

    def sync(self, call: str, node: Node) -> None:
        """All that was written to a file, or all names of a directory, are durable from now on."""
        number = self._note(call, node)
        if isinstance(node, File):
            node.syncs.append((number, len(node.writes)))
            return
        for change in self.changes:
            if change.settled == _NEVER and any(folder is node for folder, _, _ in change.parts):
                change.settled = number

    def _note(self, call: str, node: Node) -> int:
        self.before_call()
        self.calls.append(f"{call} {node.name}")
        return len(self.calls)

    def tree(self) -> Tree:
        """The current files, as processes see them."""
        return dict(_walk(self.root, lambda folder: folder.now, lambda file: bytes(file.now)))


def _land(content: bytearray, write: Write) -> None:
    write.apply(content)
    set_size(content, write.size_after(len(content)))


def _walk(
    folder: Folder, names: Callable[[Folder], dict[str, Node]], content: Callable[[File], bytes], prefix: str = ""
) -> Iterator[tuple[str, bytes]]:
    for name, node in sorted(names(folder).items()):
        if isinstance(node, Folder):
            yield f"{prefix}{name}/", b""
            yield from _walk(node, names, content, f"{prefix}{name}/")
        else:
            yield prefix + name, content(node)


# --- the power cut


class PowerCut:
    """A power cut just before a call: decides which changes have reached the disk."""

    def __init__(self, history: History, call: int, names: str, data: str, chance: random.Random) -> None:
        self._history, self._call = history, call
        self._names, self._data = names, data
        self._chance = chance
        self._odds = chance.choice(_ODDS)
        # For `prefix`. Most pending changes are recent.
        self._moment = chance.randrange(max(1, call - chance.choice((3, 10, 40))), call + 1)

    def tree(self) -> Tree:
        """The files after the power cut."""
        found = self._found_names()
        return dict(_walk(self._history.root, lambda folder: found[folder], self._content))

    # --- names

    def _found_names(self) -> dict[Folder, dict[str, Node]]:
        found = {folder: dict(folder.before) for folder in self._history.folders}
        places: dict[Link, Place] = {(folder, name): (folder, name) for folder in found for name in found[folder]}
        for change in self._history.changes:
            if change.number < self._call and (change.settled < self._call or self._reached(change.number)):
                for folder, name, node in change.parts:
                    _give_name(found, places, (folder, name), node, change.link)
        return found

    def _reached(self, number: int) -> bool:
        if self._names == "prefix":
            return number < self._moment
        return self._names == "all" or (self._names == "subset" and self._chance.random() < self._odds)

    # --- content

    def _content(self, file: File) -> bytes:
        count = file.durable_writes(self._call)
        content = bytearray(file.before)
        for write in file.writes[:count]:
            _land(content, write)
        pending = [write for write in file.writes[count:] if write.number < self._call]
        if pending:
            _LANDING[self._data](self, content, pending)
        return bytes(content)

    def _land_none(self, content: bytearray, pending: list[Write]) -> None:
        pass

    def _land_all(self, content: bytearray, pending: list[Write]) -> None:
        for write in pending:
            _land(content, write)

    def _land_prefix(self, content: bytearray, pending: list[Write]) -> None:
        for write in pending:
            if write.number >= self._moment:
                if write.data is not None:
                    part = write.data[: self._chance.randrange(len(write.data) + 1)]
                    _land(content, Write(write.number, write.position, part))
                return
            _land(content, write)

    def _land_zeros(self, content: bytearray, pending: list[Write]) -> None:
        set_size(content, self._chance.choice(_sizes(len(content), pending)))

    def _land_sectors(self, content: bytearray, pending: list[Write]) -> None:
        sizes = _sizes(len(content), pending)
        set_size(content, max(sizes))
        for sector, writes in _by_sector(sizes, pending).items():
            self._land_sector(content, sector * _SECTOR_BYTES, writes)
        set_size(content, self._chance.choice(sizes))

    def _land_sector(self, content: bytearray, start: int, writes: list[Write]) -> None:
        end, count = start + _SECTOR_BYTES, len(writes)
        if self._chance.random() >= self._odds:
            count = self._chance.randrange(count)
        for write in writes[:count]:
            write.apply(content, start, end)
        for write in writes[count:] if self._data == "noise" else ():
            if write.data is not None:
                noise = Write(0, write.position, self._chance.randbytes(len(write.data)))
                noise.apply(content, start, end)


_LANDING: dict[str, Callable[[PowerCut, bytearray, list[Write]], None]] = {
    "none": PowerCut._land_none,
    "all": PowerCut._land_all,
    "prefix": PowerCut._land_prefix,
    "sectors": PowerCut._land_sectors,
    "zeros": PowerCut._land_zeros,
    "noise": PowerCut._land_sectors,
}


def _give_name(
    found: dict[Folder, dict[str, Node]], places: dict[Link, Place], place: Place, node: Node | None, link: Link
) -> None:
    """Bind a name to a node, or remove it. If an earlier change is missing, another name may still be bound to the
    node; that binding ends."""
    folder, name = place
    if node is None:
        found[folder].pop(name, None)
        return
    old_folder, old_name = places.get(link, place)
    if found[old_folder].get(old_name) is node:
        del found[old_folder][old_name]
    found[folder][name], places[link] = node, place


def _sizes(size: int, pending: list[Write]) -> list[int]:
    """Return the sizes that the file has had since its durable state."""
    sizes = [size]
    for write in pending:
        sizes.append(write.size_after(sizes[-1]))
    return sizes


def _by_sector(sizes: list[int], pending: list[Write]) -> dict[int, list[Write]]:
    """Group the writes and cuts by sector."""
    touched: dict[int, list[Write]] = {}
    for before, after, write in zip(sizes[:-1], sizes[1:], pending, strict=True):
        first, last = (after, before) if write.data is None else (write.position, write.position + len(write.data))
        for sector in range(first // _SECTOR_BYTES, -(-last // _SECTOR_BYTES)):
            touched.setdefault(sector, []).append(write)
    return touched


# --- directories


def tree_of(top: str | Path) -> Tree:
    """Everything below a directory; nothing if there is no such directory."""
    found: Tree = {}
    for path in sorted(Path(top).rglob("*")):
        name = path.relative_to(top).as_posix()
        if path.is_dir():
            found[f"{name}/"] = b""
        else:
            found[name] = path.read_bytes()
    return found


def lay_out(top: str | Path, tree: Tree) -> None:
    """Make a new directory with all of this in it."""
    Path(top).mkdir()
    for name, content in tree.items():
        path = Path(top, name)
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(content)
