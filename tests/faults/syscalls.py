"""The system calls of a run on real files, recorded; and what a power cut at any of them can leave.

```python
with recording(top) as history:                       # every change below the directory `top` is noted
    with Log.open(f"{top}/data") as log:
        log.append(b"acknowledged")
tree = PowerCut(history, 17, "subset", "zeros", random.Random(1)).tree()
lay_out("found", tree)                                # as the machine finds it if the power goes before call 17
```

**What is recorded.** All calls by which `sawlog.storage` changes a file or a name: open (which creates and cuts), write,
pwrite, ftruncate, rename, unlink, mkdir, rmdir, fsync and fdatasync. What is stored through a mapping is no call; it is
found by comparing every writable mapping with what is known, before each call, and noted as "store". `fallocate` is not
recorded: sawlog reserves blocks beyond the end of a file, which changes neither its size nor its content. Calls that
would change files and that nobody makes are refused (`_REFUSED`). So that nothing escapes, `recording` ends with a
comparison: the files that the noted calls make are those in the directory, byte for byte.

No fsync reaches the system while a run is recorded. What a power cut leaves is decided here, and runs are quick.

**What is durable.** A file's writes and cuts are durable when an fsync of that file came after them; it says nothing
about the file's name. A change of names is durable when an fsync of a directory that it concerns came after it; it says
nothing about the content of files. A rename is one change, also between two directories.

**A power cut** before a call keeps all that was durable. Of the changes of names that were on their way,

    none       none reached the disk
    all        all did
    prefix     all up to some moment did
    subset     any of them did

and of the writes and cuts that were on their way, independently of that,

    none       none reached the disk
    all        all did
    prefix     all up to some moment did, the write of that moment up to some byte; for names and data the same moment
    sectors    of each sector (512 bytes) the content of any moment, and the size of any moment
    zeros      the size of any moment, and none of the bytes
    noise      as sectors, but what was to be written to a sector and is not there is random bytes

A file has one name at a time. Durable bytes are not touched by a write to other bytes of their sector.

Threads: any may make calls; they are recorded one at a time. One recording at a time per process.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sawlog.testing.device import Write, set_size

NAMES = ("none", "all", "prefix", "subset")
DATA = ("none", "all", "prefix", "sectors", "zeros", "noise")

#: path -> content; the path of a directory ends with a slash.
Tree = dict[str, bytes]

_SECTOR_BYTES = 512
#: How likely a change has reached the disk, where that is left to chance: for one power cut, one of these.
_ODDS = (0.15, 0.5, 0.85)
_NEVER = 1 << 62
_RECORDED = (
    "close",
    "fdatasync",
    "fsync",
    "ftruncate",
    "mkdir",
    "open",
    "pwrite",
    "remove",
    "rename",
    "replace",
    "rmdir",
    "unlink",
    "write",
)
#: They change files as well, or give them another descriptor. If the storage begins to use one, it has to be recorded.
_REFUSED = (
    "copy_file_range",
    "dup",
    "dup2",
    "link",
    "posix_fallocate",
    "pwritev",
    "sendfile",
    "splice",
    "symlink",
    "truncate",
    "writev",
)
_REAL = SimpleNamespace(**{name: getattr(os, name) for name in _RECORDED})


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
        """How many writes were durable before that call."""
        return max((count for number, count in self.syncs if number < call), default=0)


class Folder:
    """The names in one directory: when recording began, and now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.before: dict[str, Node] = {}
        self.now: dict[str, Node] = {}


Node = File | Folder


@dataclass(slots=True)
class Change:
    """A change of names, all of it or nothing."""

    number: int
    #: (directory, name, what it stands for then)
    parts: Sequence[tuple[Folder, str, Node | None]]
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
        for folder, name, node in parts:
            if node is None:
                del folder.now[name]
            else:
                folder.now[name], node.name = node, name
        self.changes.append(Change(number, parts))

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
        """As everybody sees it now."""
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


# --- recording


class _Recorder:
    """Stands in for some functions of `os`, and for `mmap.mmap`."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.history = History(self._folder_at(self.root, "."))
        self.history.folders = list(_folders(self.history.root))
        self.lock = threading.RLock()
        self._nodes: dict[int, Node] = {}
        self._mappings: dict[File, mmap.mmap] = {}

    def _folder_at(self, path: str, name: str) -> Folder:
        """What lies there before anything is recorded; all of it is durable."""
        made = Folder(name)
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                made.before[entry.name] = self._folder_at(entry.path, entry.name)
            else:
                made.before[entry.name] = File(entry.name, Path(entry.path).read_bytes())
        made.now = dict(made.before)
        return made

    def standing_in(self, name: str) -> Callable[..., Any]:
        """For the function of `os` that has this name."""
        method = getattr(self, name)

        def call(*given: Any, **named: Any) -> Any:
            with self.lock:
                self.look_at_mappings()
                return method(*given, **named)

        return call

    def _find(self, path: Any, dir_fd: int | None) -> tuple[Folder, str] | None:
        """The directory and the name in it that a path means; None if it is not below the root."""
        if not isinstance(path, str | os.PathLike):
            return None
        text, folder = str(os.fspath(path)), self.history.root
        if dir_fd is not None and not text.startswith("/"):
            found = self._nodes.get(dir_fd)
            if not isinstance(found, Folder):
                return None
            folder = found
        else:
            text = os.path.abspath(text)
            if text != self.root and not text.startswith(f"{self.root}/"):
                return None
            text = text[len(self.root) + 1 :] or "."
        *above, name = text.split("/")
        for each in above:
            found = folder.now[each]
            assert isinstance(found, Folder)
            folder = found
        return folder, name

    # --- descriptors

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd: int = _REAL.open(path, flags, mode, dir_fd=dir_fd)
        found = self._find(path, dir_fd)
        if found is None:
            return fd
        assert not flags & os.O_APPEND, "what is written with O_APPEND is not recorded"
        folder, name = found
        node = folder if name == "." else folder.now.get(name)
        if node is None:
            node = File(name)
            self.history.change("create", (folder, name, node))
        elif isinstance(node, File) and flags & os.O_TRUNC and node.now:
            self.history.write("truncate", node, 0, None)
        self._nodes[fd] = node
        return fd

    def close(self, fd: int) -> None:
        self._nodes.pop(fd, None)
        _REAL.close(fd)

    # --- content

    def write(self, fd: int, data: Any) -> int:
        file = self._nodes.get(fd)
        position = os.lseek(fd, 0, os.SEEK_CUR) if isinstance(file, File) else 0
        return self._written("write", fd, data, position, _REAL.write(fd, data))

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        return self._written("pwrite", fd, data, position, _REAL.pwrite(fd, data, position))

    def _written(self, call: str, fd: int, data: Any, position: int, count: int) -> int:
        file = self._nodes.get(fd)
        if isinstance(file, File) and count:
            self.history.write(call, file, position, bytes(memoryview(data).cast("B")[:count]))
        return count

    def ftruncate(self, fd: int, size: int) -> None:
        _REAL.ftruncate(fd, size)
        file = self._nodes.get(fd)
        if isinstance(file, File) and len(file.now) != size:
            self.history.write("ftruncate", file, size, None)

    def fsync(self, fd: int, call: str = "fsync") -> None:
        node = self._nodes.get(fd)
        if node is not None:
            self.history.sync(call, node)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd, "fdatasync")

    def note_mapping(self, fd: int, mapping: mmap.mmap) -> None:
        """A file is mapped to be written. All mappings of a file show the same: one of them is enough."""
        file = self._nodes.get(fd)
        if isinstance(file, File):
            self._mappings[file] = mapping

    def look_at_mappings(self) -> None:
        """Note what was stored through mappings since the last look."""
        for file, mapping in self._mappings.items():
            found, known = mapping[:], file.now[: len(mapping)]
            if found != known:
                first = next(at for at in range(len(found)) if at >= len(known) or found[at] != known[at])
                last = next(at for at in range(len(found), 0, -1) if at > len(known) or found[at - 1] != known[at - 1])
                self.history.write("store", file, first, found[first:last])

    # --- names

    def rename(
        self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, call: str = "rename"
    ) -> None:
        source, target = self._find(old, src_dir_fd), self._find(new, dst_dir_fd)
        _REAL.rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        assert (source is None) == (target is None), f"{old} was moved out of, or into, what is recorded"
        if source is not None and target is not None and source != target:
            node = source[0].now[source[1]]
            self.history.change(call, (*source, None), (*target, node))

    replace = rename

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        _REAL.unlink(path, dir_fd=dir_fd)
        self._removed("unlink", path, dir_fd)

    remove = unlink

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        _REAL.rmdir(path, dir_fd=dir_fd)
        self._removed("rmdir", path, dir_fd)

    def _removed(self, call: str, path: Any, dir_fd: int | None) -> None:
        found = self._find(path, dir_fd)
        if found is not None:
            self.history.change(call, (*found, None))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        _REAL.mkdir(path, mode, dir_fd=dir_fd)
        found = self._find(path, dir_fd)
        if found is not None:
            made = Folder(found[1])
            self.history.folders.append(made)
            self.history.change("mkdir", (*found, made))


def _folders(folder: Folder) -> Iterator[Folder]:
    yield folder
    for node in folder.before.values():
        if isinstance(node, Folder):
            yield from _folders(node)


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError(f"os.{name} is not recorded: tests/faults/syscalls.py has to learn it")

    return refuse


def _mapping_with(recorder: _Recorder) -> type[mmap.mmap]:
    class Mapping(mmap.mmap):
        """A mapping that the recorder knows of, if it can be written."""

        def __new__(cls, fd: int, length: int, *more: Any, **named: Any) -> Mapping:
            made = super().__new__(cls, fd, length, *more, **named)
            if named.get("access") not in (mmap.ACCESS_READ, mmap.ACCESS_COPY):
                recorder.note_mapping(fd, made)
            return made

    return Mapping


@contextmanager
def recording(root: str | Path) -> Iterator[History]:
    """Note every change below an existing directory. In the end, raise if the directory holds anything else than the
    noted calls make: then something was changed in a way that is not recorded."""
    recorder = _Recorder(os.fspath(root))
    with ExitStack() as patches:
        for name in _RECORDED:
            patches.enter_context(mock.patch.object(os, name, recorder.standing_in(name)))
        for name in _REFUSED:
            if hasattr(os, name):
                patches.enter_context(mock.patch.object(os, name, _refusing(name)))
        patches.enter_context(mock.patch.object(mmap, "mmap", _mapping_with(recorder)))
        yield recorder.history
        recorder.look_at_mappings()
    known, found = recorder.history.tree(), tree_of(root)
    other = sorted(path for path in {*known, *found} if known.get(path) != found.get(path))
    assert not other, f"changed by calls that are not recorded: {other}"


# --- the power cut


class PowerCut:
    """The power goes just before a call is made: decides what has reached the disk."""

    def __init__(self, history: History, call: int, names: str, data: str, chance: random.Random) -> None:
        self._history, self._call = history, call
        self._names, self._data = names, data
        self._chance = chance
        self._odds = chance.choice(_ODDS)
        # For `prefix`. Most of what is on its way was done lately.
        self._moment = chance.randrange(max(1, call - chance.choice((3, 10, 40))), call + 1)

    def tree(self) -> Tree:
        """What is found afterwards."""
        found = self._found_names()
        return dict(_walk(self._history.root, lambda folder: found[folder], self._content))

    # --- names

    def _found_names(self) -> dict[Folder, dict[str, Node]]:
        found = {folder: dict(folder.before) for folder in self._history.folders}
        places = {node: (folder, name) for folder, names in found.items() for name, node in names.items()}
        for change in self._history.changes:
            if change.number < self._call and (change.settled < self._call or self._reached(change.number)):
                for folder, name, node in change.parts:
                    _give_name(found, places, folder, name, node)
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
    found: dict[Folder, dict[str, Node]],
    places: dict[Node, tuple[Folder, str]],
    folder: Folder,
    name: str,
    node: Node | None,
) -> None:
    """Let a name stand for a node, or for nothing. Where an earlier change is missing, the node may have another name
    still: it loses that."""
    if node is None:
        found[folder].pop(name, None)
        return
    old_folder, old_name = places.get(node, (folder, name))
    if found[old_folder].get(old_name) is node:
        del found[old_folder][old_name]
    found[folder][name], places[node] = node, (folder, name)


def _sizes(size: int, pending: list[Write]) -> list[int]:
    """Those that a file has had, from the durable one on."""
    sizes = [size]
    for write in pending:
        sizes.append(write.size_after(sizes[-1]))
    return sizes


def _by_sector(sizes: list[int], pending: list[Write]) -> dict[int, list[Write]]:
    """Which writes and cuts concern which sector."""
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
