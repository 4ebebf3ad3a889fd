"""Replaces sealed segments by one with the same content in fewer bytes: shared by compaction, merging, recompression.

A *run* is some neighbouring sealed segments. Its replacement begins where the run began and ends where it ended: every
offset of the run is covered by a batch, also where all records are removed, so batches still follow each other without
a gap, and damage can still be distinguished from a hole. Small batches of one leader epoch are joined: no batch covers
offsets of two. Those that contain more than records (an idempotent producer's, a transaction's) keep their header and
their place.

The files, for a run of the segments 0, 100 and 250 that ends at 400:

```
1  00…0000-00…0400.log.tmp     written, fsynced
2  00…0000-00…0400.log.swap    renamed, the directory fsynced: from here on the run is replaced, also for readers
3                              the indexes of 0 and the files of 100 and 250 are deleted; the directory is fsynced
4  00…0000.index, .timeindex   written; .txnindex before them, if there is anything to say about transactions
5  00…0000.log                 renamed over the old one; the directory is fsynced
```

Before step 2 a crash leaves only a `.tmp` to remove. After it, opening finishes steps 3 to 5 (see swapping.py). Readers
in other processes use the `.swap` file as soon as it exists (see `segments._files`); what they have mapped does not
change. Only step 2 and the following ones block appends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ..batch.header import COUNT, LAST
from ..config import MAX_SEGMENT_BYTES
from ..display import missing_text
from ..errors import CorruptBatch, LogClosed, StorageError
from ..storage.system import most_descriptors
from .appender import Appender
from .batches import Chunk
from .files import SWAP, TMP, run_name
from .index import SegmentIndex
from .maintenance_state import UpkeepState, load_state
from .rebatch import Counts, Rebatch, Wanted
from .replacement import Replacement, TooLarge, finish_swap
from .segment import Segment
from .transaction_index import Outcomes

#: The maximum number of segments that are replaced by one: each is open meanwhile.
MOST_SEGMENTS = 128
#: How long upkeep waits for the log's lock before it checks whether it should continue.
_PATIENCE_S = 0.05


def most_segments() -> int:
    """How many segments are replaced at once: fewer where a process may open few files."""
    return max(2, min(MOST_SEGMENTS, most_descriptors() // 8))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A finished replacement that has not replaced anything yet."""

    run: tuple[Segment, ...]
    name: str
    size: int
    index: SegmentIndex
    counts: Counts
    #: What it says about transactions, if anything.
    outcomes: Outcomes | None = None


class Gone(Exception):
    """The segments that are being read were trimmed or truncated meanwhile."""


@contextmanager
def locked(appender: Appender) -> Iterator[None]:
    """The log's lock, for upkeep. The thread that closes the log may hold it while it waits for upkeep to end: so the
    lock is not waited for when the log is closing."""
    try:
        while not appender.lock.acquire(timeout=_PATIENCE_S):
            appender.maintenance_lock.check()
        yield
    finally:  # also if an interrupt came just when it was acquired
        try:
            appender.lock.release()
        except RuntimeError:
            pass  # it was not acquired


def begin(appender: Appender) -> tuple[int, UpkeepState]:
    """How often the log was truncated before, and what upkeep remembers of it: both at the same moment."""
    with locked(appender):
        return appender.truncations, load_state(appender.directory)


@contextmanager
def unless_gone(appender: Appender, run: Sequence[Segment]) -> Iterator[None]:
    """Upkeep reads segments without a lock. If they are removed meanwhile, errors and damage become `Gone`."""
    try:
        yield
    except (StorageError, CorruptBatch) as error:
        with locked(appender):  # whoever is just about to remove them has done it then
            listed = appender.segments.all
        if all(segment in listed for segment in run):
            raise
        raise Gone from error


def replace_run(appender: Appender, run: Sequence[Segment], wanted: Wanted) -> Rewritten:
    """Write the replacement of a run to a file next to it; `swap` puts it into effect, `discard` deletes it.

    Holds no lock. A damaged batch raises `CorruptBatch`: nothing that is damaged is ever rewritten.
    """
    with unless_gone(appender, run):
        return _replace_run(appender, run, wanted)


def _replace_run(appender: Appender, run: Sequence[Segment], wanted: Wanted) -> Rewritten:
    base, ends = run[0].base_offset, [segment.next_offset for segment in run]
    name = run_name(base, ends[-1], TMP)
    with _replacement(appender, run, name) as out:
        work = Rebatch(out, base, wanted, appender.config.max_decompressed_bytes)
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
    outcomes = _outcomes(appender, run, special)
    if outcomes is not None:
        left = tuple(each for each in outcomes.aborted if each.last_offset in work.aborts)
        outcomes = Outcomes(left, outcomes.stable_end) if work.special or outcomes.stable_end < ends[-1] else None
    return Rewritten(tuple(run), name, out.position, out.index, work.counts, outcomes)


def _outcomes(appender: Appender, run: Sequence[Segment], special: set[Segment]) -> Outcomes | None:
    """What the segments of a run say about transactions; `special` are those that contain batches of some."""
    outlook = appender.segments.outlook
    found = [outlook.outcomes_of(segment, special=segment in special) for segment in run]
    if not any(each is not None for each in found):
        return None
    aborted = tuple(each for outcomes in found if outcomes is not None for each in outcomes.aborted)
    return Outcomes(aborted, run[-1].next_offset if found[-1] is None else found[-1].stable_end)


@contextmanager
def _replacement(appender: Appender, run: Sequence[Segment], name: str) -> Iterator[Replacement]:
    """A new file to write a run's replacement to: synced at the end of the block, removed if anything fails."""
    directory = appender.directory
    directory.remove(name)
    with ExitStack() as undo:
        storage = directory.create(name)
        undo.callback(directory.remove, name)
        undo.callback(storage.close)
        out = Replacement(
            storage, run[0].base_offset, appender.config.index_interval_bytes, limit=_limit(appender, run)
        )
        yield out
        out.flush()
        storage.sync()
        undo.pop_all()
    storage.close()


def merge_run(appender: Appender, run: Sequence[Segment]) -> Rewritten:
    """As `replace_run`, byte for byte: the batches of all segments of the run in one file."""
    with unless_gone(appender, run):
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
    counts = Counts(records, records, size, size)
    return Rewritten(tuple(run), name, size, out.index, counts, _outcomes(appender, run, special))


def _limit(appender: Appender, run: Sequence[Segment]) -> int:
    """What is joined must fit into a segment; a single segment may be as large as it is."""
    return appender.config.segment_bytes if len(run) > 1 else MAX_SEGMENT_BYTES


def chunks_of(segment: Segment, end: int) -> Iterator[Chunk]:
    """All batches of a sealed segment, checked; they must extend to its end as of when the work began: a truncation
    changes it."""
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
    """Replace the run; returns False and discards the replacement if the run no longer exists.

    `cuts` is how often the log had been truncated when it was decided which records are superseded: if it was truncated
    again since then, those that superseded them may be gone.
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
            # The watermark on disk must not speak of a position in a file that is replaced.
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
                _take_back(appender, name)
            appender.end_change()
            raise
        try:
            directory.sync()
            interval = appender.config.index_interval_bytes
            replacement = Segment(directory, base, end, made.size, interval, repairs=True, outcomes=made.outcomes)
            stored = None if made.outcomes is None else made.outcomes.encode(end, made.size)
            finish_swap(directory, name, base, [each.base_offset for each in run[1:]], made.index, stored)
            appender.segments.set([*listed[:at], replacement, *listed[at + len(run) :]])
        except BaseException as error:
            appender.commit.fail(error)  # only reopening can tell whether it was replaced
            raise
        appender.end_change()
    appender.segments.wake()
    return True


def _take_back(appender: Appender, name: str) -> None:
    """A rename that failed may have happened anyway. Under its new name the file would replace segments at the next
    open, whatever has happened to them by then."""
    try:
        appender.directory.remove(name)
        appender.directory.sync()
    except StorageError as error:
        appender.commit.fail(error)


def discard(appender: Appender, made: Rewritten) -> None:
    """Delete a replacement that has not been put into effect."""
    try:
        appender.directory.remove(made.name)
    except StorageError:
        pass  # opening removes it
