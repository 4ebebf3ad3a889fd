"""A file of finished batches becomes a segment: nothing is copied, only the offsets are filled in.

The file is somewhere else on the same disk, complete and synced. Its batches get their offsets and the leader epoch in
place (twelve bytes each; no checksum covers them), it is synced, and gets a second name here, over that of the empty
active segment. Then it is sealed. So the work grows with the number of batches and not with their bytes.

It is a second name (a hard link) and not a move: the file keeps its first one until whoever has made it removes it. If
what was placed is rolled back, or a power cut takes the new name back, it is still there, and can be placed again. A
log never changes the bytes of a file that it was given: it is sealed when it is taken, and a truncation writes what
remains to a new file (cutting.py).

Threads: numbering and syncing need no lock, but nobody may append meanwhile; `adopt` takes the log's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...batch.header import (
    ATTRIBUTES,
    BASE,
    CONTROL_BIT,
    LAST,
    POSITION,
    PRODUCER_ID,
    SIZE,
    TRANSACTIONAL_BIT,
    Rows,
)
from ...batch.lengths import Length, lengths
from ...config import LogConfig
from ...errors import CorruptBatch, StorageError
from ...storage import Directory, Storage
from ..files.names import TMP, file_name
from ..segment.index import MAX_SPAN, TIME_ENTRY_BYTES, SegmentIndex
from ..segment.segment import Segment
from .appender import Appender, check_expected
from .incoming import rows_of


@dataclass(frozen=True, slots=True)
class Numbered:
    """A file whose batches have their offsets."""

    directory: Directory
    name: str
    storage: Storage
    rows: Rows

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return int(self.rows[-1, POSITION] + self.rows[-1, SIZE])

    def sync(self) -> None:
        """Make the offsets durable, before it is adopted. Any thread."""
        try:
            self.storage.sync()
        finally:
            self.storage.close()

    @property
    def offsets(self) -> range:
        """The offsets of its records."""
        return range(int(self.rows[0, BASE]), int(self.rows[-1, LAST]) + 1)


def number(appender: Appender, directory: Directory, name: str, offset: int) -> Numbered | None:
    """Give the batches of a file the offsets from `offset` on; None if it cannot become a segment here. Not durably:
    see `Numbered.sync`."""
    if not hasattr(directory, "link") or appender.config.timestamp_type == "append":
        return None
    batches = _batches_in(directory, name)
    if not _fits(appender.config, batches):
        return None
    storage = directory.open(name)
    try:
        _give_offsets(storage, batches, offset, appender.marks.epoch)
        mapped = directory.open_sealed(name)
        try:
            rows = rows_of(mapped.view(0, mapped.size))
        finally:
            mapped.close()
    except BaseException:
        storage.close()
        raise
    if _is_plain(rows):
        return Numbered(directory, name, storage, rows)
    storage.close()
    return None


def _give_offsets(storage: Storage, batches: Sequence[Length], offset: int, epoch: int) -> None:
    """Fill in offsets and epoch. Not the length between them: a power cut during a write may leave anything in the
    place of what it writes, and the next process has to find the batches again."""
    belonging = epoch.to_bytes(4, "big", signed=True)
    write = storage.write_at
    for position, _, count in batches:
        write(position, offset.to_bytes(8, "big"))
        write(position + 12, belonging)
        offset += count


def check(appender: Appender, directory: Directory, name: str) -> int:
    """The number of offsets of the batches in a file; an error if one is not complete, or does not fit."""
    batches = _batches_in(directory, name)
    for _, size, _ in batches:
        appender.check_size(size)
    return sum(count for _, _, count in batches)


def _batches_in(directory: Directory, name: str) -> list[Length]:
    """All batches of a file."""
    mapped = directory.open_sealed(name)
    try:
        found, _ = lengths(mapped.view(0, mapped.size))
        end = found[-1].position + found[-1].size_bytes if found else 0
        if end < mapped.size:
            raise CorruptBatch(f"no complete batch at byte {end} of {directory.path}/{name}; not stored")
    finally:
        mapped.close()
    return found


def _fits(config: LogConfig, batches: Sequence[Length]) -> bool:
    """Whether the log may have a segment of that size, with such indexes."""
    size = sum(size for _, size, _ in batches)
    entries = min(len(batches), size // config.index_interval_bytes + 1)
    return (
        0 < size <= config.segment_bytes
        and entries * TIME_ENTRY_BYTES <= config.max_index_bytes
        and sum(count for _, _, count in batches) <= MAX_SPAN
    )


def _is_plain(rows: Rows) -> bool:
    """Whether no batch is of a producer, whose state would have to be updated."""
    special = (rows[:, ATTRIBUTES] & (CONTROL_BIT | TRANSACTIONAL_BIT)) != 0
    return not (special | (rows[:, PRODUCER_ID] >= 0)).any()


def adopt(appender: Appender, file: Numbered) -> range | None:
    """Make a numbered file the next segment and return the offsets; None if the disk gives no file a second name."""
    with appender.appending() as first:
        check_expected(file.offsets.start, first)
        if appender.active.segment.tail[1]:
            appender.active.rotate()
        temporary = _linked(appender.directory, file, first)
        if temporary is None:
            return None
        with appender.active.lock:
            try:
                _take(appender, file, temporary)
            except BaseException as error:
                # The empty segment may have lost its name: nothing that is appended to it would be kept.
                appender.commit.fail(error)
                raise
        appender.active.rotate()
        return file.offsets


def _linked(directory: Directory, file: Numbered, base: int) -> str | None:
    """A second name for the file, here; None if it cannot have one."""
    temporary = file_name(base) + TMP
    directory.remove(temporary)
    try:
        file.directory.link(file.name, directory, temporary)
    except StorageError:
        return None
    return temporary


def _take(appender: Appender, file: Numbered, temporary: str) -> None:
    """The file takes the place of the active segment, which is empty."""
    directory, segments = appender.directory, appender.segments
    base, end = file.offsets.start, file.offsets.stop
    directory.rename(temporary, file_name(base))
    directory.sync()
    index = SegmentIndex(base, appender.config.index_interval_bytes)
    index.add_rows(file.rows, 0)
    made = Segment.active(directory, base, directory.open(file_name(base)), index, end, file.size_bytes)
    appender.active.replace(made, segments.all[:-1])
