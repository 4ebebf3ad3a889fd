"""Appending an Arrow table: batches of about 128 KiB, encoded and placed in groups of limited size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..batch.build import Encoded
from ..errors import InvalidRecord
from . import ingest
from .appender import Appender
from .writer import BATCH_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes encoded before they are placed. A larger table holds the log's lock while the rest is encoded.
_GROUP_BYTES = 8 << 20


def append_table(appender: Appender, table: pa.Table | pa.RecordBatch, expect_offset: int | None) -> range:
    """Place the rows of a table, all of them or none, and return their offsets."""
    encoder = appender.encoders.take()
    try:
        batches = encoder.table(table, min(BATCH_BYTES, appender.config.segment_bytes // 2 + 1))
        group, more = _next_group(batches)
        if more:
            return _place_groups(appender, group, batches, expect_offset)
        return _place_group(appender, group, expect_offset)
    finally:
        appender.encoders.give_back(encoder)


def _place_groups(appender: Appender, group: bytearray, batches: Iterator[Encoded], expect_offset: int | None) -> range:
    with appender.appending() as first:
        placed = _place_group(appender, group, expect_offset)
        more = True
        while more:
            group, more = _next_group(batches)
            if group:
                placed = _place_group(appender, group, None)
        return range(first, placed.stop)


def _place_group(appender: Appender, group: bytearray, expect_offset: int | None) -> range:
    if not group:
        raise InvalidRecord("no record to append")
    return appender.place_rows(memoryview(group), ingest.rows_of(memoryview(group)), expect_offset)


def _next_group(batches: Iterator[Encoded]) -> tuple[bytearray, bool]:
    """Return the next batches, contiguous and of limited size, and whether more may follow."""
    group = bytearray()
    for batch in batches:
        group += batch.data
        if len(group) >= _GROUP_BYTES:
            return group, True
    return group, False
