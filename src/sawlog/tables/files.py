"""The Parquet files of a table: list them, describe them from their footers, sync them, merge small ones.

Files are merged with others of the same partition directory and the same log partition, in the order of their offsets,
so that the merged file still has narrow ranges, by which readers skip it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from .formats import SPANS, DataFile, Span, span_of


def data_files(root: Path, pattern: str = "*.parquet") -> list[Path]:
    """Return the Parquet files below a directory, without hidden ones."""
    return [
        path
        for path in sorted(root.rglob(pattern))
        if not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)
    ]


def described(path: Path, root: Path, by: Iterable[str] = ()) -> DataFile:
    """Describe a file from its footer. Directories below `root` are partition columns."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    names = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    spans = {
        said: span_of(_span(footer.row_group(group).column(names[name])) for group in range(footer.num_row_groups))
        for name, said in SPANS.items()
        if name in names
    }
    levels = dict(part.split("=", 1) for part in path.relative_to(root).parts[:-1] if "=" in part)
    divided = {name: unquote(levels[name]) for name in by if name in levels}
    return DataFile(str(path), path.stat().st_size, footer.num_rows, divided=divided, **spans)


def _span(chunk: Any) -> Span | None:
    found = chunk.statistics
    if found is None or not found.has_min_max:
        return None
    return Span(int(found.min_raw), int(found.max_raw))


def sync_below(root: Path) -> None:
    """Make all files below a directory durable, their names, and the name of the directory itself."""
    for path, _, names in os.walk(root):
        for name in names:
            sync(Path(path) / name)
        sync(Path(path))
    sync(root.parent)


def sync(path: Path) -> None:
    """Fsync a file, or the names in a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


#: A file is small if it is below the target size divided by this.
SMALL_SHARE = 2
#: Rows per row group.
_GROUP_ROWS = 128 << 10
_GROUP_BYTES = 64 << 20
_READ_ROWS = 16 << 10


def groups(files: Sequence[DataFile], most_bytes: int, *, least: int = 2) -> Iterator[list[DataFile]]:
    """Yield groups of small files that belong together, each enough for one file, if there are at least `least`."""
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
    """Write all rows of all files, in order, with these columns; a column that a file lacks is null."""
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
    """Convert a batch to a schema: wider types, and null for missing columns."""
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
