"""Catching up: rebuild a writer's state from the headers of the batches in its log.

A writer keeps sparse indexes, timestamps, producers, transactions and leader epochs in memory. All of this is a fold
over the headers, in the order of their offsets, so it can begin anywhere:

- `replayed` begins at the state in the file `producers`, or at the beginning of the log. Opening a log ends with it,
  after recovery has verified the batches and indexed them.
- `catch_up` begins at the state of a process when it last had the lock, and continues with the batches that other
  processes have appended since, across rotations.

Both arrive at the same state: tests/log/test_catching_up.py compares them for random histories.

`catch_up` reads up to an end that another process has published, and needs no lock: bytes below it do not change. It
does not verify the content of batches, because neither a crash nor a reboot came in between; that the headers lead
exactly to the published end is enough. If they do not, or if a file is missing, the past has changed (a truncation, a
recovery, a compaction), and the caller opens the log again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..batch.header import LEADER_EPOCH, PRODUCER_ID, Rows
from ..clock import now_ms
from ..errors import CorruptBatch, CorruptFile, StorageError
from ..storage import Directory
from .durability import Tail
from .epochs import Epochs
from .files import PRODUCERS, file_name
from .index import SegmentIndex
from .producers import ProducersFile, ProducerState
from .segment import Segment
from .transactions import ALL_VISIBLE, Transactions

# --- from where this process was


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The state of a log at an end that another process has published."""

    segments: list[Segment]
    epochs: Epochs


def catch_up(segments: Sequence[Segment], epochs: Epochs, producers: ProducerState, end: Tail) -> CaughtUp | None:
    """Extend the last of these segments, and the state of the producers, by everything that other processes have
    appended up to `end`. None if the batches do not lead there: all of it is then worthless."""
    offset, base, position = end
    known, now = list(segments), now_ms()
    try:
        while True:
            segment = known[-1]
            segment.storage.refresh()
            is_last = segment.base_offset == base
            epochs = _extend(segment, position if is_last else segment.storage.size, epochs, producers, now)
            if is_last:
                break
            if not segment.base_offset < segment.next_offset <= base:
                return None
            known.append(_next(segment, producers.transactions))
    except (CorruptBatch, StorageError):
        return None
    return CaughtUp(known, epochs) if segment.tail == (offset, position) else None


def only_grew(before: Sequence[Segment], after: Sequence[Segment]) -> bool:
    """Return True if nothing has happened to the segments of a writer but appends and rotations, so that a process that
    knows the log as it was before can catch up."""
    return tuple(before) == tuple(after[: len(before)])


def _extend(segment: Segment, limit: int, epochs: Epochs, producers: ProducerState, now_ms: int) -> Epochs:
    """Add the batches up to position `limit` to a segment and its index, and note their producers. Return the leader
    epochs with those that they begin."""
    following, position = segment.tail
    for chunk in segment.batches(segment.storage, position, limit, following, check=False):
        producers.note_rows(chunk.good(_of_producers(chunk.rows)), now_ms)
        if chunk.rows[-1, LEADER_EPOCH] > epochs.current:
            epochs = epochs.begun_by(chunk.rows[chunk.rows[:, LEADER_EPOCH] > epochs.current])
        segment.add_batches(chunk.rows, chunk.origin)
    return epochs


def _next(segment: Segment, transactions: Transactions) -> Segment:
    """Seal a segment that another process has rotated, as that process did, and open the one after it."""
    directory, base, interval = segment.directory, segment.next_offset, segment.index.interval_bytes
    _finish(segment, transactions)
    segment.timestamps()
    segment.seal_at(*segment.tail)
    segment.unload()
    return Segment.active(directory, base, directory.open(file_name(base)), SegmentIndex(base, interval), base, 0)


# --- from a file, or from the beginning


def replayed(
    segments: Sequence[Segment],
    expiry_ms: int,
    found: ProducersFile | None = None,
    *,
    lowest: int,
    visible: int = ALL_VISIBLE,
) -> ProducerState:
    """Replay the batch headers of these segments of a log that starts at `lowest`, on top of the state in a file.
    Sealed segments that are read completely also learn the outcomes of their transactions."""
    if found is None:
        state, start = ProducerState(expiry_ms, Transactions(segments[0].base_offset, visible, lowest)), 0
    else:
        state, start = ProducerState.of(found, expiry_ms, visible, lowest=lowest), found.offset
    now = now_ms()
    for segment in segments:
        if segment.next_offset > start and segment.size:
            # A damaged header would cause valid batches to be refused.
            for rows in segment.selected_rows(max(start, segment.base_offset), segment.next_offset, _of_producers):
                state.note_rows(rows, now)
        if segment.sealed:
            if segment.next_offset > start:
                _finish(segment, state.transactions)
            segment.unload()
    if state.transactions.since < segments[-1].base_offset:
        state.transactions.begin_segment(segments[-1].base_offset)
    return state


def _finish(segment: Segment, transactions: Transactions) -> None:
    """Record the outcomes of the transactions in a sealed segment whose batches were noted to its end."""
    if transactions.since <= segment.base_offset:
        transactions.begin_segment(segment.base_offset)
        segment.set_transaction_index(transactions.index_for(segment.next_offset))
        if segment.transaction_index is not None and segment.repairs:
            segment.write_transaction_index()
    transactions.begin_segment(segment.next_offset)


def _of_producers(rows: Rows) -> Rows:
    found: Rows = rows[rows[:, PRODUCER_ID] >= 0]
    return found


def load_producers(directory: Directory, epochs: Epochs, end: int) -> ProducersFile | None:
    """Load the file if it describes a log with these epochs that ends at `end`. None if there is no file, or if it
    describes a longer log than this one is or was. `CorruptFile` if it is damaged."""
    if not directory.exists(PRODUCERS):
        return None
    found = ProducersFile.decode(directory.read(PRODUCERS))
    return found if found.offset <= epochs.end_of(found.leader_epoch, end) else None


def after_cut(
    directory: Directory, epochs: Epochs, segments: Sequence[Segment], expiry_ms: int, *, lowest: int, visible: int
) -> ProducerState:
    """Return the state of a log after a truncation or the rollback of a failed append."""
    try:
        found = load_producers(directory, epochs, segments[-1].next_offset)
    except CorruptFile:
        found = None
    if found is None:
        directory.remove(PRODUCERS)  # else it would seem valid once the log has grown again
    return replayed(segments, expiry_ms, found, lowest=lowest, visible=visible)
