"""The Parquet files of a table: list them, describe them from their footers, sync them, merge small ones; and
`ManifestTable`, a table that consists of such files and a manifest that lists them.

Files are merged with others of the same partition directory and the same log partition, in the order of their offsets,
so that the merged file still has narrow ranges, by which readers skip it.

```
orders/_sawlog/manifest          files, marks, columns; a document with a checksum, replaced atomically
orders/data/<round>/*.parquet    the files
```

A reader reads the manifest, then the files that it lists. Files that a merge replaced are kept for readers of an older
manifest, and removed later (`clean`). Readers that list the directory instead see merged records twice, and files of an
incomplete commit: give them Delta or Iceberg.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ..clock import now_ms
from ..errors import StorageError
from ..storage import FileDirectory, checksummed
from ..storage.checksummed import MISSING
from . import columns
from .formats import (
    SPANS,
    DataFile,
    Span,
    TableCommit,
    TableIdentity,
    TableSnapshot,
    file_from_json,
    file_to_json,
    marks_from_json,
    marks_to_json,
    span_of,
)

STATE_DIRECTORY = "_sawlog"
_MANIFEST = "manifest"


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
                    rows, size_bytes = (sum(map(attrgetter(name), waiting)) for name in ("num_rows", "nbytes"))
                    if rows >= _GROUP_ROWS or size_bytes >= _GROUP_BYTES:
                        writer.write_table(pa.Table.from_batches(waiting), row_group_size=_GROUP_ROWS)
                        waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=_GROUP_ROWS)


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


# --- a table with a manifest


class ManifestTable:
    """A directory of Parquet files with a manifest."""

    def __init__(self, location: Path) -> None:
        self.location = location

    def snapshot(self) -> TableSnapshot | None:
        found = self._load()
        if found is None:
            return None
        return TableSnapshot(
            tuple(file_from_json(each, str(self.location)) for each in found["files"]),
            marks_from_json(found["marks"]),
            columns.parsed(found["columns"]),
            found["topic_id"],
            found["topic"],
            tuple(found["by"]),
            str(found["version"]),
        )

    def commit(self, identity: TableIdentity, change: TableCommit) -> None:
        before: Mapping[str, Any] = self._load() or {"version": 0, "files": [], "retired": []}
        gone = {file_to_json(each, str(self.location))["path"] for each in change.removed}
        now = now_ms()
        fields = {
            "version": before["version"] + 1,
            "topic": identity.topic,
            "topic_id": identity.topic_id,
            "by": list(identity.by),
            "columns": columns.shown_schema(change.schema),
            "marks": marks_to_json(change.marks),
            "files": [
                *(each for each in before["files"] if each["path"] not in gone),
                *(file_to_json(each, str(self.location)) for each in change.added),
            ],
            "retired": [*before["retired"], *([path, now] for path in sorted(gone))],
        }
        self._store(fields)

    def clean(self, keep_s: float) -> int:
        found = self._load()
        if found is None:
            return 0
        since = now_ms() - round(keep_s * 1000)
        old = [path for path, when in found["retired"] if when <= since]
        if old:
            for path in old:
                (self.location / path).unlink(missing_ok=True)
            self._store({**found, "retired": [each for each in found["retired"] if each[0] not in set(old)]})
        return len(old)

    def _load(self) -> dict[str, Any] | None:
        try:
            directory = FileDirectory(self.location / STATE_DIRECTORY, create=False)
        except StorageError as error:
            if error.errno in MISSING:
                return None
            raise
        with closing(directory):
            return checksummed.load(directory, _MANIFEST) if directory.exists(_MANIFEST) else None

    def _store(self, fields: dict[str, Any]) -> None:
        with closing(FileDirectory(self.location / STATE_DIRECTORY)) as directory:
            checksummed.store(directory, _MANIFEST, fields)
