"""The current version of a topic's table, checked against the log, as SQL reads it.

A table is used only if it belongs to this topic, and if the log has not lost records that the table has: the log would
reuse their offsets for other records.

The quarantine holds records that are in the log but not in the table. The table job commits it before the table, so it
is looked up after the table: below the table's ends it is complete. Its records from there on are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .. import tables
from ..errors import DataLoss, InvalidConfig
from ..log import slices
from ..store.base import Topic
from ..tables.state import DataFile, Mark, Span, TableSnapshot
from .filters import ALL, Bounds, IntRange
from .history import History, HistoryFile


def history_of(topic: Topic) -> History | None:
    """Return the current version of a topic's table; None if it has none."""
    info = topic.table
    if info is None:
        return None
    found = tables.snapshot(info)
    check_same_topic(found, topic)
    for number, mark in found.marks.items():
        check_same_log(topic, number, mark)
    return History(list(_files(info, found, topic)), found.ends, found.schema, found.fields)


def _files(info: tables.TableLocation, found: TableSnapshot, topic: Topic) -> Iterator[HistoryFile]:
    yield from (_file(each, found.ends, unparsed=False) for each in found.data)
    bad = tables.open_table(tables.quarantine_of(info)).snapshot()
    if bad is not None:
        check_same_topic(bad, topic)
        yield from (_file(each, found.ends, unparsed=True) for each in bad.data)


def _file(file: DataFile, ends: Mapping[int, int], *, unparsed: bool) -> HistoryFile:
    times = None if file.times_us is None else Span(file.times_us.first // 1000, file.times_us.last // 1000)
    bounds = Bounds(_range(file.partitions), _range(file.offsets), _range(times))
    return HistoryFile(file.path, file.rows, bounds, beyond=not file.is_within(ends), unparsed=unparsed)


def _range(span: Span | None) -> IntRange:
    return ALL if span is None else IntRange(span.first, span.last)


def check_same_topic(snapshot: TableSnapshot, topic: Topic) -> None:
    """Raise `InvalidConfig` if a table belongs to an earlier topic of that name."""
    if snapshot.topic_id != topic.id:
        raise InvalidConfig(
            f"the table of {topic.name!r} was made of an earlier topic {snapshot.topic!r}, which was recreated or "
            "rewritten since: the offsets have changed. Make a new table, in another directory"
        )


def check_same_log(topic: Topic, number: int, mark: Mark) -> None:
    """Raise `DataLoss` if the log has lost records that are in the table: it would reuse their offsets for others."""
    end = slices.proven_end(topic.partition(number), mark.epoch, mark.end)
    if end < mark.end:
        raise DataLoss(
            f"partition {number} of {topic.name!r} has lost its records from offset {end} on (a power cut, or "
            f"truncate), but the table has them up to {mark.end - 1}; make a new table, in another directory"
        )
