"""Dropping the end of a log (`truncate`) and its beginning (`trim`).

Truncation keeps [lowest, offset). If anything of what goes was visible, a new leader epoch begins at `offset`: whoever
has read it finds out (see epochs.py). That epoch and a lowered watermark are written down, durably, and this is the
moment at which the truncation has happened: before it, a crash leaves the log as it was; after it, whoever opens the
log next finishes the cut (see cutting.py). Only then readers are kept from what goes: nobody has ever been told of an
end that a longer log comes back from. If nothing of it was visible there is nothing to be noticed, and a crash half-way
leaves a longer log.

Trimming notes the new log start durably, then deletes the segments that lie wholly below it. What lies below it is
durable by then, whatever the policy: a log that ends before it starts is nothing that anybody could open. Offsets never
go back: if nothing is left, the log goes on in an empty segment at the offset that was next.
"""

from __future__ import annotations

from ..errors import OffsetOutOfRange, StorageFull
from .append import Appender
from .cutting import cut, cut_at, delete_above
from .epochs import Epochs
from .recovery import replayed
from .segment import Segment
from .state import load_state, store_state


def truncate(log: Appender, offset: int) -> int:
    """Keep the records below `offset`; how many were dropped."""
    with log.exclusive():
        segments = log.segments
        lowest, following = segments.lowest_offset, segments.next_offset
        if not lowest <= offset <= following:
            raise OffsetOutOfRange(offset, lowest, following, log.directory.path)
        if offset == following:
            return 0
        target = segments.find(offset)
        point = cut_at(target, offset, log.config)
        log.cuts += 1
        _retreat_upkeep(log, offset)
        log.retreat(offset, point.tail, _epochs_after(log, offset))
        kept = list(segments.all)
        kept = kept[: kept.index(target) + 1]
        try:
            # From here on there is no way back, only forward at the next open. Hide first what is going to go.
            target.pinned = True
            segments.set(kept)
            target.tail = offset, point.visible
            segments.version += 1  # for a reader that looked between the two lines above
            delete_above(log.directory, target.base_offset)
            kept[-1] = cut(log.directory, log.config, point)
            if log.producers.reaches(offset):
                log.producers = replayed(kept, log.config.producer_expiry_ms)
            log.adopt(kept)
        except BaseException as error:
            log.commit.fail(error)
            raise
    segments.wake()
    return following - offset


def _epochs_after(log: Appender, offset: int) -> Epochs:
    """With a new one from `offset` on if somebody may have read what goes. Else it is as if it had never been there;
    but epochs that began in it begin here now."""
    segments = log.segments
    epochs = segments.epochs
    if segments.visible_offset > offset:
        return epochs.trimmed(segments.lowest_offset).begun(epochs.current + 1, offset)
    return epochs.begun(epochs.current, offset) if epochs.entries[-1][1] > offset else epochs


def _retreat_upkeep(log: Appender, offset: int) -> None:
    """What upkeep has done from `offset` on was done to records that go. If it is not forgotten before they do, new
    records at these offsets would be taken for compacted ones."""
    state = load_state(log.directory)
    if state.retreat(offset):
        store_state(log.directory, state)


def trim(log: Appender, offset: int) -> int:
    """Drop the records below `offset`; how many were dropped."""
    with log.exclusive():
        segments = log.segments
        lowest, following = segments.lowest_offset, segments.next_offset
        if offset < lowest:
            return 0
        if offset > following:
            raise OffsetOutOfRange(offset, lowest, following, log.directory.path)
        if offset == following and segments.active.size:
            log.rotate()
        kept = list(segments.all)
        gone: list[Segment] = []
        while len(kept) > 1 and kept[0].next_offset <= offset:
            gone.append(kept.pop(0))
        if offset > log.commit.durable_offset:
            log.sync_held()
        try:
            note_start(log, offset)
        except StorageFull:
            if not gone:
                raise
            _make_room(log, kept, gone)
            note_start(log, offset)
        else:
            _drop(log, kept, gone)
    segments.wake()
    return offset - lowest


def note_start(log: Appender, offset: int) -> None:
    """Write down where the log starts now; or leave it where it started."""
    before, log.segments.lowest_offset = log.segments.lowest_offset, offset
    try:
        log.save(clean=False)
    except BaseException:
        log.segments.lowest_offset = before
        raise


def _drop(log: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    """Delete segments that lie below the start."""
    if gone:
        log.segments.set(kept)
        for segment in gone:
            segment.delete()
        log.directory.sync()


def _make_room(log: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    """Delete segments before the new start can be written down: the names of the files alone say where the log starts,
    if this is where it ends. One by one, each durably: a power cut that takes the names in another order would leave a
    gap behind one that is still there. What cannot be deleted stays."""
    segments = log.segments
    for number, segment in enumerate(gone, 1):
        lowest, left = segments.lowest_offset, [*gone[number:], *kept]
        segments.lowest_offset = max(lowest, left[0].base_offset)
        segments.set(left)
        try:
            segment.delete()
        except BaseException:
            if log.directory.exists(segment.name):
                segments.set([segment, *left])
                segments.lowest_offset = lowest
            raise
        log.directory.sync()
