"""The Parquet files of a table: found, described from their footers, made durable."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .state import DataFile, Span, span_of

_SPANS = {"partition": "partitions", "offset": "offsets", "timestamp": "times_us"}


def data_files(root: Path, pattern: str = "*.parquet") -> list[Path]:
    """Parquet files below a directory, without hidden ones."""
    return [
        path
        for path in sorted(root.rglob(pattern))
        if not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)
    ]


def described(path: Path, root: Path, by: Iterable[str] = ()) -> DataFile:
    """A file as its footer describes it; `root` is where its path begins to have columns."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    names = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    spans = {
        said: span_of(_span(footer.row_group(group).column(names[name])) for group in range(footer.num_row_groups))
        for name, said in _SPANS.items()
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
    """fsync of a file, or of the names in a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
