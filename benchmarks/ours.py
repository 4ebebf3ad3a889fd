"""sawlog with the same interface as its rivals, and what only sawlog has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from dataset import Dataset

import sawlog


class Sawlog:
    """One log. Settings are the defaults but for `durability`, and `settings` where a case is about them."""

    name = "sawlog"

    def __init__(self, path: Path, *, durable: bool = False, **settings: Any) -> None:
        config = sawlog.LogConfig(durability="always" if durable else "os", **settings)
        self.log = sawlog.Log.open(path, config)
        self._writer = self.log.writer()

    def prepared(self, data: Dataset) -> list[Any]:
        batch = [(value, key) for key, value in data.batch]
        return [batch] * data.batches

    def append_many(self, batches: list[Any]) -> None:
        for batch in batches:
            self.log.append_many(batch)

    def append_each(self, batches: list[Any]) -> None:
        append = self._writer.append
        for batch in batches:
            for value, key in batch:
                append(value, key)
        self._writer.flush()

    def append_acknowledged(self, records: list[Any]) -> None:
        append = self.log.append
        for value, key in records:
            append(value, key)

    def append_arrow(self, tables: list[pa.Table]) -> None:
        """Table after table."""
        for table in tables:
            self.log.append_arrow(table)

    def records(self) -> Iterator[Any]:
        return self.log.scan()

    def arrow(self, *, views: bool = False) -> Iterator[pa.RecordBatch]:
        """Scan to Arrow batches of offset, timestamp, key and value."""
        return self.log.scan_arrow(views=views)

    def fetched(self, max_bytes: int) -> Iterator[int]:
        """The sizes of raw fetches, one after the other to the end."""
        offset = 0
        while (found := self.log.fetch(offset, max_bytes)).next_offset > offset:
            offset = found.next_offset
            yield found.size_bytes

    def get(self, offset: int) -> Any:
        return self.log.read(offset)

    def content(self) -> tuple[int, int]:
        count = size = 0
        for record in self.log.scan():
            count += 1
            size += len(record.key) + len(record.value)
        return count, size

    def close(self) -> None:
        self.log.close()
