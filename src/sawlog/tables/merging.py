"""Merging small Parquet files: which ones, and into what.

Files are merged with others of the same division and the same partition, in the order of their offsets, so that the
merged file still has narrow ranges, which readers use to leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from .state import DataFile

#: A file is small if it is below this share of the target size.
SMALL_SHARE = 2
#: The rows of a row group.
_GROUP_ROWS = 128 << 10
_GROUP_BYTES = 64 << 20
_READ_ROWS = 16 << 10


def groups(files: Sequence[DataFile], most_bytes: int, *, least: int = 2) -> Iterator[list[DataFile]]:
    """Small files that belong together, each group enough for one file; `least` that many are worth it."""
    small = [each for each in files if each.size_bytes * SMALL_SHARE < most_bytes]
    small.sort(key=lambda each: (_kind(each), each.offsets.first if each.offsets is not None else 0, each.path))
    for _, together in groupby(small, _kind):
        group: list[DataFile] = []
        size_bytes = 0
        for each in together:
            if group and size_bytes + each.size_bytes > most_bytes:
                if len(group) >= least:
                    yield group
                group, size_bytes = [], 0
            group.append(each)
            size_bytes += each.size_bytes
        if len(group) >= least:
            yield group


def _kind(file: DataFile) -> tuple[tuple[tuple[str, str], ...], int]:
    divided = tuple(sorted((name, value or "") for name, value in file.divided.items()))
    return divided, -1 if file.partition is None else file.partition


def write_together(paths: Sequence[str | Path], made: Path, schema: pa.Schema | None = None) -> None:
    """All rows of all files, in order, with these columns; a column that a file does not have is null."""
    import pyarrow.parquet as pq

    found = schema if schema is not None else pq.read_schema(paths[0])
    made.parent.mkdir(parents=True, exist_ok=True)
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(made, found, compression="zstd", write_page_index=True) as writer:
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_READ_ROWS):
                    waiting.append(_fitted(batch, found))
                    if _is_enough(waiting):
                        writer.write_table(pa.Table.from_batches(waiting), row_group_size=_GROUP_ROWS)
                        waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=_GROUP_ROWS)


def _is_enough(waiting: Sequence[pa.RecordBatch]) -> bool:
    rows, size_bytes = sum(each.num_rows for each in waiting), sum(each.nbytes for each in waiting)
    return bool(rows >= _GROUP_ROWS or size_bytes >= _GROUP_BYTES)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns of a schema: wider types, and null for what it has not."""
    there = set(batch.schema.names)
    arrays = [
        _cast(batch.column(field.name), field.type) if field.name in there else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        there = {field.name: number for number, field in enumerate(array.type)}
        parts = [
            _cast(array.field(there[each.name]), each.type) if each.name in there else pa.nulls(len(array), each.type)
            for each in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        values = _cast(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    return array.cast(kind)
