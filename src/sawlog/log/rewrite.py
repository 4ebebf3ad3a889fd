"""Replacement of sealed segments by a smaller one, for compaction, merging and recompression.

A *run* is a sequence of neighbouring sealed segments. Its replacement begins and ends at the same offsets. Batches
cover every offset of the run, even where all records were removed, so they still follow each other without a gap, and
damage can be told from a hole. Small batches of the same leader epoch are joined; no batch spans two epochs. Batches
that carry producer state (of idempotent producers and transactions) keep their header and their offsets.

The files, for a run of the segments 0, 100 and 250 that ends at 400:

```
1  00…0000-00…0400.log.tmp     written, fsynced
2  00…0000-00…0400.log.swap    renamed, the directory fsynced: the run is now replaced, for readers as well
3                              the indexes of 0 and the files of 100 and 250 are deleted; the directory is fsynced
4  00…0000.index, .timeindex   written; .txnindex before them, if the run has transactions
5  00…0000.log                 renamed over the old one; the directory is fsynced
```

A crash before step 2 leaves only a `.tmp` file to remove. After step 2, recovery finishes steps 3 to 5 (`finish_swap`),
which can be repeated from the beginning any number of times; `UnfinishedSwap` tells it whether a file that it found may
replace anything. Readers in other processes use the `.swap` file as soon as it exists (`followed_segments._files`);
their existing mappings do not change. Only step 2 and the following ones block appends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from ..batch.header import COUNT, LAST, POSITION, SIZE
from ..config import MAX_SEGMENT_BYTES
from ..display import missing_text
from ..errors import CorruptBatch, LogClosed, StorageError
from ..storage import Directory, Storage
from ..storage.system import most_descriptors
from .appender import Appender
from .batches import MAX_SPAN, Chunk, Walk
from .files import INDEX, LOG, SWAP, TIME_INDEX, TMP, TXN_INDEX, file_name, run_name, segment_base
from .index import SegmentIndex
from .maintenance_state import MaintenanceState, load_state
from .rebatch import Rebatcher, RewriteCounts, RewriteOptions
from .segment import Segment
from .transactions import TransactionIndex

#: Maximum number of segments in a run: each stays open during the rewrite.
MAX_SEGMENTS = 128
#: Maintenance waits this long for the log's lock, then checks that the log is not closing.
_LOCK_TIMEOUT_S = 0.05
#: Finished batches of a replacement are written in blocks of about this size.
_WRITE_BYTES = 1 << 20


def max_segments() -> int:
    """Return the maximum length of a run, which depends on the process's limit of open files."""
    return max(2, min(MAX_SEGMENTS, most_descriptors() // 8))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A finished replacement that has not taken effect yet."""

    run: tuple[Segment, ...]
    name: str
    size: int
    index: SegmentIndex
    counts: RewriteCounts
    #: Its transaction index, if any.
    transaction_index: TransactionIndex | None = None


class TooLarge(Exception):
    """The replacement would not fit into one segment; `fitted` segments of the run would have."""

    def __init__(self, fitted: int = 0) -> None:
        super().__init__(fitted)
        self.fitted = fitted


class ReplacementFile:
    """A replacement being written, and its index."""

    def __init__(self, storage: Storage, base: int, interval_bytes: int, *, limit: int) -> None:
        self._storage = storage
        self._buffer = bytearray()
        self._limit = limit
        self._base = base
        self.position = 0
        self.index = SegmentIndex(base, interval_bytes)

    def put(self, batch: memoryview, last_offset: int, max_timestamp: int, *, count: int) -> None:
        """Append a finished batch of `count` records. Only empty batches may end beyond the range of the index."""
        self._check(len(batch), last_offset if count else self._base)
        if last_offset - self._base <= MAX_SPAN:
            self.index.add(last_offset, self.position, len(batch), max_timestamp)
        self.position += len(batch)
        if len(batch) >= _WRITE_BYTES:  # not buffered: it may be as large as a segment
            self.flush()
            self._storage.append(batch)
            return
        self._buffer += batch
        if len(self._buffer) >= _WRITE_BYTES:
            self.flush()

    def copy(self, chunk: Chunk) -> None:
        """Append the batches of a chunk unchanged."""
        rows = chunk.rows
        begin, end = int(rows[0, POSITION]), int(rows[-1, POSITION] + rows[-1, SIZE])
        self._check(end - begin, int(rows[rows[:, COUNT] > 0, LAST].max(initial=self._base)))
        self.flush()
        self.index.add_rows(rows, self.position - begin)
        self._storage.append(chunk.view[begin:end])
        self.position += end - begin

    def _check(self, size: int, last_offset: int) -> None:
        self.check_room(size)
        if last_offset - self._base >= MAX_SPAN:
            raise TooLarge

    def check_room(self, size: int) -> None:
        """Raise `TooLarge` unless `size` more bytes fit."""
        if self.position + size > self._limit:
            raise TooLarge

    def flush(self) -> None:
        if self._buffer:
            self._storage.append(self._buffer)
            self._buffer = bytearray()


class SegmentsRemoved(Exception):
    """The segments being read were trimmed or truncated meanwhile."""


@contextmanager
def locked(appender: Appender) -> Iterator[None]:
    """Hold the log's lock during maintenance, in a turn of this process. The thread that closes the log may hold it
    while it waits for maintenance to end, so this raises instead of blocking once the log is closing."""
    try:
        while not appender.lock.acquire(timeout=_LOCK_TIMEOUT_S):
            appender.maintenance_lock.check()
        with appender.hold():
            yield
    finally:  # even if an interrupt arrives right after the acquisition
        try:
            appender.lock.release()
        except RuntimeError:
            pass  # not acquired


def begin(appender: Appender) -> tuple[int, MaintenanceState]:
    """Return the number of truncations so far and the maintenance state, both as of the same moment."""
    with locked(appender):
        return appender.truncations, load_state(appender.directory)


@contextmanager
def detect_removal(appender: Appender, run: Sequence[Segment]) -> Iterator[None]:
    """Turn errors of a block into `SegmentsRemoved` if its segments were removed: maintenance reads without a lock."""
    try:
        yield
    except (StorageError, CorruptBatch) as error:
        with locked(appender):  # a removal in progress has finished by then
            listed = appender.segments.all
        if all(segment in listed for segment in run):
            raise
        raise SegmentsRemoved from error


def replace_run(appender: Appender, run: Sequence[Segment], wanted: RewriteOptions) -> Rewritten:
    """Write the replacement of a run to a file next to it; `swap` puts it into effect, `discard` deletes it.

    Holds no lock. Raises `CorruptBatch` for a damaged batch: damaged segments are never rewritten.
    """
    with detect_removal(appender, run):
        return _replace_run(appender, run, wanted)


def _replace_run(appender: Appender, run: Sequence[Segment], wanted: RewriteOptions) -> Rewritten:
    base, ends = run[0].base_offset, [segment.next_offset for segment in run]
    name = run_name(base, ends[-1], TMP)
    with _replacement(appender, run, name) as out:
        work = Rebatcher(out, base, wanted, appender.config.max_decompressed_bytes)
        fitted = 0
        special: set[Segment] = set()
        try:
            for fitted, segment in enumerate(run):
                for chunk in chunks_of(segment, ends[fitted]):
                    appender.maintenance_lock.check()
                    work.take(chunk, segment)
                    if chunk.special:
                        special.add(segment)
                out.check_room(work.open_bytes)
            work.finish(ends[-1])
        except TooLarge:
            raise TooLarge(fitted) from None
    index = _joined_index(appender, run, special)
    if index is not None:
        left = tuple(each for each in index.aborted if each.last_offset in work.aborts)
        index = TransactionIndex(left, index.stable_end) if work.special or index.stable_end < ends[-1] else None
    return Rewritten(tuple(run), name, out.position, out.index, work.counts, index)


def _joined_index(appender: Appender, run: Sequence[Segment], special: set[Segment]) -> TransactionIndex | None:
    """Return the joined transaction index of a run. `special`: the segments with transactional batches."""
    view = appender.segments.transaction_view
    found = [view.index_of(segment, special=segment in special) for segment in run]
    if not any(each is not None for each in found):
        return None
    aborted = tuple(each for index in found if index is not None for each in index.aborted)
    return TransactionIndex(aborted, run[-1].next_offset if found[-1] is None else found[-1].stable_end)


@contextmanager
def _replacement(appender: Appender, run: Sequence[Segment], name: str) -> Iterator[ReplacementFile]:
    """Create the file for a run's replacement: synced at the end of the block, removed if anything fails."""
    directory = appender.directory
    directory.remove(name)
    with ExitStack() as undo:
        storage = directory.create(name)
        undo.callback(directory.remove, name)
        undo.callback(storage.close)
        out = ReplacementFile(
            storage, run[0].base_offset, appender.config.index_interval_bytes, limit=_limit(appender, run)
        )
        yield out
        out.flush()
        storage.sync()
        undo.pop_all()
    storage.close()


def merge_run(appender: Appender, run: Sequence[Segment]) -> Rewritten:
    """Like `replace_run`, but copy the batches of all segments unchanged."""
    with detect_removal(appender, run):
        return _merge_run(appender, run)


def _merge_run(appender: Appender, run: Sequence[Segment]) -> Rewritten:
    ends = [segment.next_offset for segment in run]
    name = run_name(run[0].base_offset, ends[-1], TMP)
    records = 0
    special: set[Segment] = set()
    with _replacement(appender, run, name) as out:
        for segment, segment_end in zip(run, ends, strict=True):
            for chunk in chunks_of(segment, segment_end):
                appender.maintenance_lock.check()
                out.copy(chunk)
                if chunk.special:
                    special.add(segment)
                records += int(chunk.rows[:, COUNT].sum())
    size = out.position
    counts = RewriteCounts(records, records, size, size)
    return Rewritten(tuple(run), name, size, out.index, counts, _joined_index(appender, run, special))


def _limit(appender: Appender, run: Sequence[Segment]) -> int:
    """Return the maximum size of a replacement: merged segments must fit into one; a single one keeps its size."""
    return appender.config.segment_bytes if len(run) > 1 else MAX_SEGMENT_BYTES


def chunks_of(segment: Segment, end: int) -> Iterator[Chunk]:
    """Yield all batches of a sealed segment, verified. Raises `CorruptBatch` unless they extend to `end`, the end of
    the segment when the work began: a truncation changes it."""
    following = segment.base_offset
    loaded = segment.is_loaded
    passed = 0
    try:
        for chunk in segment.chunks(segment.base_offset, end):
            yield chunk
            following = int(chunk.rows[-1, LAST]) + 1
            segment.storage.forget(passed, chunk.origin - passed)
            passed = chunk.origin
    finally:
        if not loaded:
            segment.unload()
    if following != end:
        raise CorruptBatch(missing_text(following, end), path=segment.path, position=segment.size)


# --- putting it into effect


def swap(appender: Appender, made: Rewritten, cuts: int | None = None) -> bool:
    """Replace the run. Returns False and discards the replacement if the run no longer exists.

    `cuts` is the number of truncations at the time when superseded records were determined. After another truncation,
    the records that superseded them may be gone.
    """
    try:
        return _swap(appender, made, cuts)
    except LogClosed:
        discard(appender, made)
        raise


def _swap(appender: Appender, made: Rewritten, cuts: int | None) -> bool:
    directory, run = appender.directory, made.run
    with locked(appender), appender.exclusive():
        listed = appender.segments.all
        at = listed.index(run[0]) if run[0] in listed else -1
        cut = cuts is not None and appender.truncations != cuts
        if cut or at < 0 or listed[at : at + len(run)] != run or run[-1] is listed[-1]:
            discard(appender, made)  # trimmed or truncated meanwhile
            return False
        base, end = run[0].base_offset, run[-1].next_offset
        name = run_name(base, end, SWAP)
        renaming = False
        appender.begin_change()
        try:
            # The watermark on disk must not refer to a position in a file that is being replaced.
            appender.checkpoints.save(clean=False)
            for segment in run:
                segment.begin_replacement()
            renaming = True
            directory.rename(made.name, name)
        except BaseException:
            for segment in run:
                segment.cancel_replacement()
            discard(appender, made)
            if renaming:
                _undo_rename(appender, name)
            appender.end_change()
            raise
        try:
            directory.sync()
            interval = appender.config.index_interval_bytes
            replacement = Segment(
                directory, base, end, made.size, interval, repairs=True, transaction_index=made.transaction_index
            )
            stored = None if made.transaction_index is None else made.transaction_index.encode(end, made.size)
            finish_swap(directory, name, base, [each.base_offset for each in run[1:]], made.index, stored)
            appender.segments.set([*listed[:at], replacement, *listed[at + len(run) :]])
        except BaseException as error:
            appender.durability.fail(error)  # only recovery can tell whether it was replaced
            raise
        appender.end_change()
    appender.segments.wake()
    return True


def _undo_rename(appender: Appender, name: str) -> None:
    """Remove the renamed file after a failed rename, which may have happened anyway. Otherwise the file would replace
    segments at the next open, whatever has happened to them by then."""
    try:
        appender.directory.remove(name)
        appender.directory.sync()
    except StorageError as error:
        appender.durability.fail(error)


def discard(appender: Appender, made: Rewritten) -> None:
    """Delete a replacement that has not been put into effect."""
    try:
        appender.directory.remove(made.name)
    except StorageError:
        pass  # recovery removes it


# --- the last steps, also for recovery


def finish_swap(
    directory: Directory,
    name: str,
    base: int,
    others: Sequence[int],
    index: SegmentIndex | None = None,
    transactions: bytes | None = None,
) -> None:
    """Perform steps 3 to 5 of the protocol. Missing indexes are built on demand."""
    for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
        directory.remove(file_name(base, suffix))
    for other in others:
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX, LOG):
            directory.remove(file_name(other, suffix))
    directory.sync()
    if transactions is not None:
        directory.replace(file_name(base, TXN_INDEX), transactions)
    if index is not None:
        offsets, times = index.encode()
        directory.replace(file_name(base, INDEX), offsets)
        directory.replace(file_name(base, TIME_INDEX), times)
    directory.rename(name, file_name(base))
    directory.sync()


class UnfinishedSwap:
    """A `.swap` file found by recovery, and whether it replaces the old segments."""

    def __init__(
        self, directory: Directory, name: str, base: int, end: int, names: Sequence[str], interval_bytes: int
    ) -> None:
        self._directory = directory
        self._interval_bytes = interval_bytes
        #: First offsets of the old segments that still exist.
        self.old = [each for other in names if (each := segment_base(other)) is not None and base <= each < end]
        #: True if the file contains every offset of the run.
        self.whole = self._reaches(name, base, end)
        #: True if the file replaces the old segments. False if it ends within one of them, or if it is damaged and no
        #: segment begins at its end: no rewrite produces such a file. Also False if it is damaged and all old segments
        #: are intact.
        self.replaces = not self._go_beyond(end) and (
            self.whole or (file_name(end) in names and not self._are_whole([*self.old, end]))
        )

    def _reaches(self, name: str, base: int, end: int) -> bool:
        """Return True if a file contains complete batches from `base` to `end`."""
        walk = self._walked(name, base, end)
        return walk.damage is None and walk.next_offset == end

    def _walked(self, name: str, base: int, end: int) -> Walk:
        """Walk a file that should contain the offsets from `base` to `end`."""
        storage = self._directory.open(name)
        try:
            segment = Segment(self._directory, base, end, storage.size, self._interval_bytes)
            return segment.walk(storage, 0, storage.size, SegmentIndex(base, self._interval_bytes))
        finally:
            storage.close()

    def _go_beyond(self, end: int) -> bool:
        """Return True if the last of the old segments contains offsets at or after `end`."""
        return bool(self.old) and self._walked(file_name(self.old[-1]), self.old[-1], end).next_offset > end

    def _are_whole(self, bases: list[int]) -> bool:
        """Return True if each segment extends to the next base; the last number is only an end."""
        return len(bases) > 1 and all(self._reaches(file_name(base), base, end) for base, end in pairwise(bases))
