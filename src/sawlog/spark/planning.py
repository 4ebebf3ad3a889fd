"""Planning: the driver cuts ranges of offsets into tasks.

A task has one or more slices (see `sawlog.log.slices`). Large partitions become many tasks, small ones share one, so
that the parallelism does not depend on the number of partitions. A slice names its end, so a DataFrame is a snapshot:
however often Spark reads it, it gives the same records.

A task says which store, which topic and which leader epoch its slices are of, because it may be read later, or on a
machine that has something else at the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from ..errors import DataLoss
from ..log import slices
from ..log.slices import Slice
from .options import ReadOptions
from .places import Places
from .positions import UNKNOWN, Positions
from .ranges import Range, Ranges

#: What a task reads at least, if there is so much: less would not be worth starting one for.
LEAST_TASK_BYTES = 4 << 20
#: And at most, if nobody says otherwise; as Spark's own files.
TASK_BYTES = 128 << 20
#: How often a partition is planned again because records were dropped meanwhile.
_RETRIES = 100


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice, and of which partition it is."""

    topic: str
    topic_id: str
    partition: int
    what: Slice


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads, and from which store."""

    path: str
    store: str
    pieces: tuple[Piece, ...]

    def __init__(self, path: str, store: str, pieces: Sequence[Piece]) -> None:
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "store", store)
        object.__setattr__(self, "pieces", tuple(pieces))


def plan(
    places: Places, options: ReadOptions, start: Positions, end: Positions, *, moved: bool | None = None
) -> list[InputPartition]:
    """Tasks for everything from `start` to `end`; for `moved` see `Ranges`."""
    ranges = Ranges(places, start, end, moved=moved)
    found = [each for share in sorted(end.at) if (each := ranges.of(share)) is not None]
    step = _step(found, options)
    pieces = [piece for each in found for piece in _cut(ranges, each, step, options)]
    return [Task(options.path, places.store.id, each) for each in _grouped(pieces, options)]


def _step(ranges: list[Range], options: ReadOptions) -> int:
    """How finely partitions are cut before pieces are put together."""
    step = min(LEAST_TASK_BYTES, options.max_partition_bytes or LEAST_TASK_BYTES)
    if options.min_partitions:
        total = sum(each.log.size_bytes * (each.last.offset - each.first) // max(len(each.log), 1) for each in ranges)
        step = min(step, total // options.min_partitions)
    return max(step, 1)


def _cut(ranges: Ranges, found: Range | None, step: int, options: ReadOptions) -> list[Piece]:
    """The slices of one partition. What is dropped just now is looked at again."""
    lost: DataLoss | None = None
    for _ in range(_RETRIES):
        if found is None:
            return []
        topic, number, last = found.topic, found.number, found.last
        try:
            made = slices.plan(
                found.log,
                found.first,
                last.offset,
                epoch=None if last.epoch == UNKNOWN else last.epoch,
                target_bytes=step,
                max_records=options.max_records,
            )
            return [Piece(topic.name, topic.id, number, each) for each in made]
        except DataLoss as error:
            lost = error
            found = ranges.again((topic.name, number))  # raises, unless data loss is no failure
    raise lost or AssertionError("nothing was tried")


def _grouped(pieces: list[Piece], options: ReadOptions) -> list[list[Piece]]:
    """Neighbouring pieces of a partition together until a task has enough; then what is small shares tasks."""
    if not pieces:
        return []
    total = sum(piece.what.size_bytes for piece in pieces)
    target = options.max_partition_bytes or TASK_BYTES
    if options.min_partitions:
        target = min(target, max(total // options.min_partitions, 1))
    joined = [pieces[0]]
    for piece in pieces[1:]:
        if (made := _joined(joined[-1], piece, target, options.max_records)) is not None:
            joined[-1] = made
        else:
            joined.append(piece)
    if options.max_records is not None:
        return [[piece] for piece in joined]
    tasks: list[list[Piece]] = [[]]
    size = 0
    for piece in joined:
        if tasks[-1] and size + piece.what.size_bytes > target:
            tasks.append([])
            size = 0
        tasks[-1].append(piece)
        size += piece.what.size_bytes
    return tasks


def _joined(before: Piece, after: Piece, target: int, max_records: int | None) -> Piece | None:
    """Two slices of one file that follow each other, as one, if that is not too much."""
    one, two = before.what, after.what
    if (before.topic, before.partition, one.name) != (after.topic, after.partition, two.name):
        return None
    if one.end_offset != two.start_offset or two.end_position - one.start_position > target:
        return None
    if max_records is not None and two.end_offset - one.start_offset > max_records:
        return None
    end_position = max(one.end_position, two.end_position)
    return replace(before, what=replace(one, end_offset=two.end_offset, end_position=end_position))
