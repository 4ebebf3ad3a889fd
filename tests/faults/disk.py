"""`FaultyStorage`: an in-memory disk that simulates power cuts and fails on demand.

```python
disk = FaultyStorage(seed=7)
log = Log.open(disk)                       # or sawlog.open(disk): it is a directory like any other
log.append(b"acknowledged")
found = disk.crash("reorder")              # a new disk, as the machine finds it after a power cut
assert [record.value for record in Log.open(found)] == [b"acknowledged"]
```

**Durability.** Every file has bytes on the device and pending changes (writes and truncations). `sync` of the file
makes its changes durable, but not its name. Every directory has names on the device and pending changes (created,
renamed, removed, moved); `sync` of the directory makes them durable, but not the bytes of the files. Each call makes
the same system calls in the same order as `FileDirectory`, including the fsyncs of `create` and a durable `replace`,
and no more: a test compares the two. A move from one directory to another is one change, which `sync` of either makes
durable, as on every journaling file system.

**A power cut** (`crash(mode)`) keeps everything that is durable. Of the pending changes, by mode:

    lose       none reached the device
    keep       all did
    prefix     all up to some moment did; the write at that moment up to some byte
    tear       all names did; of the writes, some sectors (512 bytes) did
    reorder    any subset of the names did, and each sector has its content at any moment; a file has its size at some
               moment, so there may be zeros, or bytes that were truncated before
    garbage    as reorder, but bytes of a sector that were not written are random

Writes to the same sector are not reordered: a sector contains everything written to it before.
Bytes that were durable are not affected by a write to other bytes of the same sector (SQLite calls it powersafe
overwrite); a disk without this guarantee can lose what was synced years ago. A file has one name at a time.

**The death of a process** (`process_dies()`) loses nothing that was written or published. Pending changes stay pending:
a later power cut may lose them, even if the next process has read them.

**Failing calls** are armed with a `Fault`, as with every `FaultyDirectory`. In addition, a failed `sync` drops the
pending changes of the file, and the next `sync` reports success (Linux marks the pages clean). The bytes remain
readable until the power is cut. Names whose `sync` failed stay pending until one succeeds: they are journaled, and a
file system that loses a transaction of its journal accepts no more writes, so there is no misleading later success.

**A full disk** (`capacity_bytes`): a write that does not fit is short, then fails with ENOSPC; the partial write is
rolled back, as `FileStorage` does.

**Damage**: `flip` inverts a bit of a file, in the cache and on the device. `misdirect` sends the next write of a file
elsewhere: the cache is correct, but on the device the bytes are at another position or in another file.

**Published numbers** (`Directory.published`) are in memory that all processes of the machine share: they survive the
death of a process, but not a power cut.

All random choices follow from `seed` and from the number of changes (`steps`), so they are repeatable. Not in this
model: reads that return different bytes each time, a device that loses what it has confirmed, clocks.

Threads: any. `watch` is called under the disk's lock, and the disk does not change meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Literal, get_args

from sawlog.storage import Directory
from sawlog.storage.memory import PublishedMemory
from sawlog.testing import FaultyDirectory

from .device import (
    Device,
    File,
    Folder,
    Misdirection,
    NameChange,
    Node,
    Step,
    Write,
    copy_numbers,
    locate,
    set_size,
    walk,
)

Mode = Literal["lose", "keep", "prefix", "tear", "reorder", "garbage"]
#: Modes of a power cut.
MODES: tuple[Mode, ...] = get_args(Mode)

SECTOR_BYTES = 512
#: Probability that a pending change reached the device: one of these per crash.
_ODDS = (0.15, 0.5, 0.85)


class _PowerCut:
    """One power cut: decides which changes reached the device, and builds the resulting disk."""

    def __init__(self, device: Device, mode: Mode, rng: random.Random) -> None:
        self._mode = mode
        self._random = rng
        self._odds = rng.choice(_ODDS)
        self._kept: dict[int, bool] = {}
        self._made: dict[int, File] = {}
        self._cut = self._moment(device) if mode == "prefix" else 0

    def _moment(self, device: Device) -> int:
        """Return, for `prefix`, the first change that did not reach the device."""
        numbers = sorted(_numbers_on_their_way(device.root, set()))
        return self._random.choice([*numbers, device.steps + 1])

    def fill(self, folder: Folder, found: Folder) -> None:
        """Create the names and everything below them."""
        names = dict(folder.durable)
        for change in folder.pending:
            if change.sure or self._reached(change):
                change.apply(folder, names, in_order=False)
        for name, node in names.items():
            if isinstance(node, Folder):
                made = Folder(found.disk, f"{found.path}/{name}", found)
                self.fill(node, made)
                found.entries[name] = made
            else:
                found.entries[name] = self._file(node)
        found.durable = dict(found.entries)

    def _reached(self, change: NameChange) -> bool:
        if self._mode in ("keep", "tear"):
            return True
        if self._mode == "lose":
            return False
        if self._mode == "prefix":
            return change.number < self._cut
        return self._kept.setdefault(id(change), self._random.random() < self._odds)

    def _file(self, file: File) -> File:
        made = self._made.get(id(file))
        if made is None:
            made = self._made[id(file)] = File(self._content(file))
        return made

    def _content(self, file: File) -> bytearray:
        pending = [write for write in file.pending if write.astray is None]
        content = bytearray(file.durable)
        if not pending or self._mode == "lose":
            return content
        if self._mode in ("tear", "reorder", "garbage"):
            return self._sectors(content, pending)
        for write in pending:
            end = 1 << 62
            if self._mode == "prefix" and write.number >= self._cut:
                if write.number > self._cut or write.data is None:
                    break
                end = write.position + self._random.randrange(len(write.data) + 1)
            write.apply(content, 0, end)
            set_size(content, min(write.size_after(len(content)), max(end, len(content))))
        return content

    def _sectors(self, content: bytearray, pending: list[Write]) -> bytearray:
        """Choose the content of each sector, and the size, at some moment."""
        size = len(content)
        sizes = [size]
        touched: dict[int, list[Write]] = {}
        for write in pending:
            after = write.size_after(size)
            first, last = (after, size) if write.data is None else (write.position, write.position + len(write.data))
            for sector in range(first // SECTOR_BYTES, -(-last // SECTOR_BYTES)):
                touched.setdefault(sector, []).append(write)
            size = after
            sizes.append(size)
        set_size(content, max(sizes))
        for sector, writes in touched.items():
            self._sector(content, sector * SECTOR_BYTES, writes)
        set_size(content, sizes[-1] if self._mode == "tear" else self._random.choice(sizes))
        return content

    def _sector(self, content: bytearray, start: int, writes: list[Write]) -> None:
        end = start + SECTOR_BYTES
        count = len(writes)
        if self._random.random() >= self._odds:
            count = 0 if self._mode == "tear" else self._random.randrange(count)
        for write in writes[:count]:
            write.apply(content, start, end)
        if self._mode == "garbage":
            for write in writes[count:]:
                if write.data is not None:
                    noise = Write(0, write.position, self._random.randbytes(len(write.data)))
                    noise.apply(content, start, end)


def _numbers_on_their_way(folder: Folder, seen: set[int]) -> Iterator[int]:
    if id(folder) in seen:
        return
    seen.add(id(folder))
    yield from (change.number for change in folder.pending if not change.sure)
    nodes = [*folder.entries.values(), *folder.durable.values()]
    for node in nodes:
        if isinstance(node, Folder):
            yield from _numbers_on_their_way(node, seen)
        elif id(node) not in seen:
            seen.add(id(node))
            yield from (write.number for write in node.pending)


class _DiskCopy:
    """Copies a disk with its content and pending changes: the disk that the next process finds."""

    def __init__(self) -> None:
        self._files: dict[int, File] = {}
        self._folders: dict[int, Folder] = {}
        self._changes: dict[int, NameChange] = {}

    def fill(self, folder: Folder, made: Folder) -> None:
        """Copy a directory with everything below it."""
        self._folders[id(folder)] = made
        made.entries = {name: self._node(node, made.disk) for name, node in folder.entries.items()}
        made.durable = {name: self._node(node, made.disk) for name, node in folder.durable.items()}
        made.pending = [self._change(change, made.disk) for change in folder.pending]
        for name, numbers in folder.numbers.items():
            if numbers.load() is not None or any(numbers.words):
                copy_numbers(numbers, made.published(name, create=True))
        for node in made.entries.values():
            if isinstance(node, Folder):
                node.parent = made

    def _node(self, node: Node, disk: Device) -> Node:
        if isinstance(node, Folder):
            known = self._folders.get(id(node))
            if known is None:
                known = Folder(disk, node.path)
                self.fill(node, known)
            return known
        return self._file(node)

    def _file(self, file: File) -> File:
        made = self._files.get(id(file))
        if made is None:
            made = self._files[id(file)] = File(memoryview(file.buffer)[: file.size])
            made.durable, made.differs = bytearray(file.durable), file.differs
            made.pending = [self._write(write) for write in file.pending]
        return made

    def _write(self, write: Write) -> Write:
        if write.astray is None:
            return write
        other, position = write.astray
        return Write(write.number, write.position, write.data, (self._file(other), position))

    def _change(self, change: NameChange, disk: Device) -> NameChange:
        made = self._changes.get(id(change))
        if made is None:
            made = self._changes[id(change)] = NameChange(change.number, [])
            made.sure = change.sure
            for folder, name, node in change.parts:
                where = self._node(folder, disk)
                assert isinstance(where, Folder)
                made.parts.append((where, name, None if node is None else self._node(node, disk)))
        return made


class FaultyStorage(FaultyDirectory):
    """The root directory of a simulated disk; see the module's docstring."""

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None) -> None:
        self.seed = seed
        self._device = Device(capacity_bytes)
        super().__init__(self._device.root)

    def __repr__(self) -> str:
        return f"<FaultyStorage seed={self.seed}, {self.steps} steps>"

    @property
    def plain(self) -> Directory:
        """The same directory without call recording and faults; faster, for large numbers of runs."""
        return self._device.root

    @property
    def steps(self) -> int:
        """Number of changes made or begun so far."""
        return self._device.steps

    @property
    def watch(self) -> Callable[[Step], None] | None:
        """Callback before each change. It may inspect the disk, crash it (which creates another one), or raise."""
        return self._device.watch

    @watch.setter
    def watch(self, watch: Callable[[Step], None] | None) -> None:
        self._device.watch = watch

    @property
    def capacity_bytes(self) -> int | None:
        """Capacity in bytes; None is unlimited."""
        return self._device.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        self._device.capacity_bytes = capacity_bytes

    # --- crashes

    def crash(self, mode: Mode, seed: int | str | None = None) -> FaultyStorage:
        """Return the disk after a power cut at this moment. The same seed (by default derived from the disk's seed and
        the number of changes) gives the same result. This disk does not change."""
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; use one of {', '.join(MODES)}")
        rng = random.Random(f"{self.seed}/{self.steps}/{mode}" if seed is None else seed)
        made = FaultyStorage(self.seed, capacity_bytes=self.capacity_bytes)
        with self._device.lock:
            _PowerCut(self._device, mode, rng).fill(self._device.root, made._device.root)
        return made

    def process_dies(self) -> FaultyStorage:
        """Return the disk as the next process finds it: nothing lost, no lock held, pending changes still pending."""
        made = FaultyStorage(self.seed, capacity_bytes=self.capacity_bytes)
        with self._device.lock:
            _DiskCopy().fill(self._device.root, made._device.root)
            made._device.steps = self.steps
        return made

    # --- inspecting

    def content(self) -> dict[str, bytes]:
        """Return all files by path, as processes see them now; the path of a directory ends with a slash."""
        with self._device.lock:
            return {
                path: bytes(memoryview(node.buffer)[: node.size]) if isinstance(node, File) else b""
                for path, node in walk(self._device.root)
            }

    def published_numbers(self) -> Iterator[tuple[str, str, PublishedMemory]]:
        """Yield published numbers with the path of their directory and their name."""
        root = self._device.root
        for path, node in [("", root), *walk(root)]:
            if isinstance(node, Folder):
                for name, numbers in node.numbers.items():
                    yield path, name, numbers

    @property
    def is_settled(self) -> bool:
        """True if no change is pending and the device equals the cache, so that all crashes have the same result."""
        if next(_numbers_on_their_way(self._device.root, set()), None) is not None:
            return False
        return not any(isinstance(node, File) and node.differs for _, node in walk(self._device.root))

    # --- damage

    def flip(self, name: str, bit: int) -> None:
        """Invert one bit of a file, counted from the first bit of its first byte. `name` is its path from here."""
        folder, last = locate(self._device.root, name)
        file = folder.find(last)
        position, mask = bit // 8, 0x80 >> bit % 8
        if not 0 <= position < file.size:
            raise ValueError(f"{name} has {8 * file.size} bits, not {bit + 1}")
        changed = bytearray(memoryview(file.buffer)[: file.size])
        changed[position] ^= mask
        file.buffer = changed  # existing views keep the bytes from before the damage
        if position < len(file.durable):
            file.durable[position] ^= mask

    def misdirect(self, names: str = "*", *, into: str | None = None, shift_bytes: int | None = None) -> None:
        """Misdirect the next write to a file whose name matches: on the device it goes this many bytes off (by default
        a sector), or to the same position of the file `into`. Reads are correct until a crash."""
        target = None
        if into is not None:
            folder, last = locate(self._device.root, into)
            target = folder.find(last)
        shift = (0 if into is not None else SECTOR_BYTES) if shift_bytes is None else shift_bytes
        self._device.misdirection = Misdirection(names, target, shift)
