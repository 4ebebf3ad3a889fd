"""A Delta table, through the package `deltalake`: no jar, and no Spark to read it.

Files are committed by reference: Spark's tasks have written them, and the driver adds their paths and the statistics of
their footers. The marks are Delta's application transactions, of which a table keeps the last version of each; they are
part of the commit that adds the files, and survive checkpoints, `optimize` and the removal of old log entries:

    sawlog:<topic id>:<partition>:end     the next offset           also :start and :epoch

The table's description names its topic. New columns are a commit of their own before the first one that uses them. A
wider type is not: Delta's readers need not accept files with the narrower one, so the whole table is rewritten, in one
commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlparse

import pyarrow as pa

from ..clock import now_ms
from .columns import TIMES, evolved, plain
from .formats import (
    DataFile,
    Mark,
    Span,
    TableCommit,
    TableIdentity,
    TableSnapshot,
    check_package,
    foreign_table_error,
    unreadable_table_error,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable as Opened

_OURS = "sawlog"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES = {"date": pa.date32(), "hour": pa.int32()}


class DeltaTable:
    """A Delta table on a local path."""

    def __init__(self, location: Path) -> None:
        check_package("delta")
        self.location = location

    def _opened(self) -> Opened | None:
        import deltalake

        root = str(self.location)
        return deltalake.DeltaTable(root) if deltalake.DeltaTable.is_deltatable(root) else None

    # --- reading

    def snapshot(self) -> TableSnapshot | None:
        """Return the current version. Raises `InvalidConfig` if its Parquet files alone do not represent it."""
        table = self._opened()
        if table is None:
            return None
        identity = self._identity(table)
        self._check(table)
        columns = [each for each in plain(pa.schema(table.schema().to_arrow())) if each.name not in identity.by]
        return TableSnapshot(
            tuple(self._files(table)),
            _marks(table, identity.topic_id),
            pa.schema(columns),
            identity.topic_id,
            identity.topic,
            identity.by,
            str(table.version()),
        )

    def _identity(self, table: Opened) -> TableIdentity:
        try:
            said = json.loads(table.metadata().description or "")[_OURS]
            return TableIdentity(said["topic"], said["topic_id"], tuple(table.metadata().partition_columns))
        except (ValueError, KeyError, TypeError) as error:
            raise foreign_table_error(self.location, "Delta") from error

    def _check(self, table: Opened) -> None:
        mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mode != "none":
            raise unreadable_table_error(
                self.location, f"its columns are mapped to other names (delta.columnMapping.mode={mode})"
            )
        features = table.protocol().reader_features or []
        if "deletionVectors" in features and pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all():
            raise unreadable_table_error(self.location, "rows of its files are deleted by deletion vectors")

    def _files(self, table: Opened) -> list[DataFile]:
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [self._file(row) for row in rows]

    def _file(self, row: Mapping[str, Any]) -> DataFile:
        divided = {name: row[f"partition.{name}"] for name in TIMES if f"partition.{name}" in row}
        return DataFile(
            self._path(row["path"]),
            row["size_bytes"],
            row["num_records"],
            _span(row, "partition"),
            _span(row, "offset"),
            _time_span(row),
            {name: None if value is None else str(value) for name, value in divided.items()},
        )

    def _path(self, said: str) -> str:
        found = urlparse(said)
        if found.scheme == "file":
            return unquote(found.path)
        return said if said.startswith("/") else str(self.location / said)

    # --- writing

    def commit(self, identity: TableIdentity, change: TableCommit) -> None:
        table = self._opened()
        if table is None:
            self._replace(identity, change, "error")
            return
        now = [each for each in plain(pa.schema(table.schema().to_arrow())) if each.name not in identity.by]
        difference = evolved(pa.schema(now), change.schema)
        if difference.widened:
            self._replace(identity, change, "overwrite")
            return
        if difference.added:
            self._evolve(table, difference.schema)
            table = self._opened()
            assert table is not None
        table.create_write_transaction(
            [*self._removals(change), *self._additions(change)],
            "append",
            table.schema(),
            list(identity.by),
            commit_properties=_noted(identity, change, _marks(table, identity.topic_id)),
        )

    def _replace(self, identity: TableIdentity, change: TableCommit, mode: str) -> None:
        """Create the table, or replace its columns and all its files."""
        import deltalake
        from deltalake.transaction import create_table_with_add_actions

        self.location.mkdir(parents=True, exist_ok=True)
        fields = [*change.schema, *(pa.field(name, _TYPES[name]) for name in identity.by)]
        said = {_OURS: {"topic": identity.topic, "topic_id": identity.topic_id}}
        create_table_with_add_actions(
            str(self.location),
            deltalake.Schema.from_arrow(pa.schema(fields)),
            self._additions(change),
            mode=mode,  # type: ignore[arg-type]
            partition_by=list(identity.by),
            name=identity.topic,
            description=json.dumps(said),
            commit_properties=_noted(identity, change),
        )

    @staticmethod
    def _evolve(table: Opened, schema: pa.Schema) -> None:
        """Add columns. A struct gets its new fields through an empty write that merges the schemas."""
        import deltalake

        known = set(plain(pa.schema(table.schema().to_arrow())).names)
        new = [field for field in schema if field.name not in known]
        if new:
            table.alter.add_columns(list(deltalake.Schema.from_arrow(pa.schema(new)).fields))
        now = pa.schema(deltalake.DeltaTable(table.table_uri).schema().to_arrow())
        times = [field for field in plain(now) if field.name not in schema.names]
        if plain(now) != pa.schema([*schema, *times]):
            empty = pa.schema([*schema, *times]).empty_table()
            deltalake.write_deltalake(table.table_uri, empty, mode="append", schema_mode="merge")

    def _additions(self, change: TableCommit) -> list[Any]:
        from deltalake.transaction import AddAction

        now = now_ms()
        return [
            AddAction(
                quote(str(Path(each.path).relative_to(self.location)), safe="/=-_.:"),
                each.size_bytes,
                dict(each.divided),
                now,
                not change.moved,
                json.dumps(_stats(each)),
            )
            for each in change.added
        ]

    def _removals(self, change: TableCommit) -> list[Any]:
        from deltalake._internal import RemoveAction

        now = now_ms()
        return [
            RemoveAction(
                str(Path(each.path).relative_to(self.location)),
                not change.moved,
                now,
                each.size_bytes,
                dict(each.divided),
            )
            for each in change.removed
        ]

    def clean(self, keep_s: float) -> int:
        """Run Delta's vacuum on files that were removed from the table."""
        table = self._opened()
        if table is None:
            return 0
        hours = max(round(keep_s / 3600), 0)
        return len(table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False))


def _noted(identity: TableIdentity, change: TableCommit, known: Mapping[int, Mark] | None = None) -> Any:
    """Return the commit properties that hold the marks, without those already `known` to the table."""
    import deltalake

    made: list[Any] = []
    for number, mark in sorted(change.marks.items()):
        before = (known or {}).get(number, (None,) * len(mark))
        for said, value, old in zip(Mark._fields, mark, before, strict=True):
            # A version cannot be negative: an unknown epoch is left out.
            if value >= 0 and value != old:
                made.append(deltalake.Transaction(_app(identity.topic_id, number, said), value))
    return deltalake.CommitProperties(app_transactions=made)


def _app(topic_id: str, number: int, said: str) -> str:
    return f"{_OURS}:{topic_id}:{number}:{said}"


def _marks(table: Opened, topic_id: str) -> dict[int, Mark]:
    """Read the marks of the partitions in order, up to the first partition without one: each commit has the marks of
    all."""
    marks: dict[int, Mark] = {}
    while True:
        number = len(marks)
        found = [table.transaction_version(_app(topic_id, number, said)) for said in Mark._fields]
        if found[0] is None or found[1] is None:
            return marks
        marks[number] = Mark(found[0], found[1], -1 if found[2] is None else found[2])


def _stats(file: DataFile) -> dict[str, Any]:
    """Return the statistics by which readers skip files. Delta's times have milliseconds: the last one is rounded
    up."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for name, span in (("partition", file.partitions), ("offset", file.offsets)):
        if span is not None:
            least[name], most[name] = span
    if file.times_us is not None:
        least["timestamp"] = _time(file.times_us.first // 1000)
        most["timestamp"] = _time(-(-file.times_us.last // 1000))
    return {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": dict.fromkeys(least, 0)}


def _time(milliseconds: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _span(row: Mapping[str, Any], name: str) -> Span | None:
    first, last = row.get(f"min.{name}"), row.get(f"max.{name}")
    return None if first is None or last is None else Span(first, last)


def _time_span(row: Mapping[str, Any]) -> Span | None:
    first, last = row.get("min.timestamp"), row.get("max.timestamp")
    if first is None or last is None:
        return None
    microsecond = timedelta(microseconds=1)
    return Span((first - _EPOCH) // microsecond, (last - _EPOCH) // microsecond + 999)
