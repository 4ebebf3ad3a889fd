"""Operations of `workloads` that leave offsets out: batches that keep theirs, and logs that continue at a later one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sawlog import Log
from sawlog.batch import kernel
from sawlog.batch.build import encode

from .disturbed import given
from .promises import LogPromise, Row

if TYPE_CHECKING:
    from .workloads import LogWorkload


def _is_empty(log: Log) -> bool:
    """True if the log consists of one empty file, so that it can start at any offset."""
    return len(log.segments) == 1 and not log.size_bytes


def append_kept(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Batches that keep their offsets, with gaps before and between them, some of a later leader epoch; the first batch
    of an empty log may begin before the log does."""
    with log._hold():
        pass
    epoch = log.leader_epoch + run.random.choice((-1, 0, 0, 1, 2))
    over = _is_empty(log) and promise.end > 0 and run.random.random() < 0.5
    offset = promise.end - 1 if over else promise.end + run.random.choice((0, 0, 1, 3))
    raw, placed = bytearray(), dict[int, Row]()
    for _ in range(run.random.randrange(1, 4)):
        rows = run.rows(run.random.randrange(2, 4), 60)
        batch = bytearray(encode([given(row) for row in rows]))
        kernel.patch_place(memoryview(batch), 0, offset, max(epoch, 0))
        raw += batch
        placed.update(enumerate(rows, offset))
        offset += len(rows) + run.random.choice((0, 0, 1, 5))
        epoch += run.random.random() < 0.3
    first, end = promise.end, max(placed) + 1
    promise.send_at({at: row for at, row in placed.items() if at >= first}, end)
    assert log._append_at_offsets(bytes(raw)) == range(first, end)
    promise.acknowledge(log, range(first, end))


def advance(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """The next record has a later offset; an empty log begins there."""
    with log._hold():
        pass
    first, end = promise.end, promise.end + run.random.choice((1, 2, 7))
    empty = _is_empty(log)
    promise.send_at({}, end)
    if empty:
        promise.begin_trim(end)
    assert log._advance(end) == end - first
    promise.acknowledge(log, range(first, end))
    if empty:
        promise.end_trim(log)
