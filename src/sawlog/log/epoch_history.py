"""Leader epochs derived from the batches: rebuilding the list of epochs, and detecting an unfinished truncation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..batch.header import BASE, LEADER_EPOCH, Rows
from ..errors import CorruptBatch, StorageError
from .epochs import Epochs
from .remote import RemoteSegments
from .segment import Segment


def epochs_of(segments: Iterable[Segment], remote: RemoteSegments | None = None) -> tuple[Epochs, bool]:
    """Rebuild the list from the batches and the part that exists only in the replica. Also return whether the epochs of
    the batches increase, as this version ensures.

    Version 0.2 appended in epoch 0 to what it had imported in later epochs. The epochs below such a step cannot be
    distinguished: they all end where the next epoch begins, if there is one.
    """
    entries: list[tuple[int, int]] = []
    most, ordered = -1, True
    for segment in segments:
        for rows in _rows_of(segment):
            for at in np.flatnonzero(np.diff(rows[:, LEADER_EPOCH], prepend=most)).tolist():
                epoch = int(rows[at, LEADER_EPOCH])
                if epoch > most:
                    entries.append((epoch, int(rows[at, BASE])))
                    most = epoch
                elif epoch < most:
                    entries, ordered = [], False
    if not entries:
        found = Epochs(((max(most, 0), 0),))
        return found if remote is None or not ordered else remote.with_epochs(found), ordered
    if ordered and entries[0][0] == 0:
        entries[0] = (0, 0)
    found = Epochs(tuple(entries))
    return found if remote is None or not ordered else remote.with_epochs(found), ordered


def _rows_of(segment: Segment) -> Iterable[Rows]:
    """Yield the headers of all batches. Damage is skipped here and reported when it is read."""
    loaded = segment.is_loaded
    if segment.size:
        yield from segment.rows_around_damage(segment.base_offset, check=False)
    if not loaded:
        segment.unload()


def as_the_batches_say(epochs: Epochs, segments: Sequence[Segment], remote: RemoteSegments | None) -> Epochs:
    """Return the list without entries that contradict the batches. The last epoch number is not reused."""
    return epochs_of(segments, remote)[0].begun(epochs.current, segments[-1].next_offset)


def epoch_at(segments: Sequence[Segment], offset: int) -> int | None:
    """Return the epoch of the batch that contains `offset`; None if no readable batch does."""
    for segment in reversed(segments):
        if segment.base_offset <= offset < segment.next_offset:
            loaded = segment.is_loaded
            try:
                for chunk in segment.chunks(offset, offset + 1, check=False):
                    return int(chunk.rows[0, LEADER_EPOCH])
            except (CorruptBatch, StorageError):
                return None
            finally:
                if not loaded:
                    segment.unload()
    return None


def unfinished_truncation(epochs: Epochs, segments: Sequence[Segment]) -> int | None:
    """Return the offset of a truncation that was recorded but not finished: the last epoch begins there, and the batch
    at that offset belongs to an earlier one. None if there is none. If the checkpoint says that more is durable, it is
    not an unfinished truncation, and the batches are trusted."""
    last, start = epochs.entries[-1]
    if not segments or start >= segments[-1].next_offset or not last:
        return None  # and no epoch is earlier than 0
    there = epoch_at(segments, start)
    return start if there is not None and there < last else None
