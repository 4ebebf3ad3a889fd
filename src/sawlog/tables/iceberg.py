"""An Iceberg table, through the package `pyiceberg`: no jar. Its catalogue is a SQLite file, unless another is given.

```
lake/catalog.db                  the catalogue of all tables of this directory
lake/orders/data/<round>/…       files written by Spark's tasks, added by reference (`add_files`)
lake/orders/metadata/…           Iceberg's metadata
```

The marks are in the summary of the snapshot, and also in the properties of the table, because snapshots expire. Both
are written in the transaction that adds the files. A snapshot made by another program, for example by rewriting files,
has no marks: then those of its newest ancestor with marks apply.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa

from .columns import evolved, plain
from .formats import (
    SPANS,
    DataFile,
    Mark,
    Span,
    TableCommit,
    TableIdentity,
    TableSnapshot,
    check_package,
    foreign_table_error,
    marks_from_json,
    marks_to_json,
    unreadable_table_error,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as Opened

CATALOG = "catalog.db"
_TOPIC, _TOPIC_ID, _MARKS, _BY = "sawlog.topic", "sawlog.topic-id", "sawlog.marks", "sawlog.by"


class IcebergTable:
    """An Iceberg table in a catalogue; its files are on a local path."""

    def __init__(self, location: Path, name: str, catalog: Mapping[str, str]) -> None:
        check_package("iceberg")
        self.location = location
        namespace, _, table = name.partition(".")
        self._name = (namespace, table)
        self._catalog = dict(catalog)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Catalog, Opened | None]]:
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self._open_catalog()
        try:
            try:
                found = catalog.load_table(self._name)
            except NoSuchTableError:
                found = None
            yield catalog, found
        finally:
            catalog.close()

    def _open_catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.sql import SqlCatalog

        if self._catalog:
            given = dict(self._catalog)
            return load_catalog(given.pop("name", "sawlog"), **given)
        lake = self.location.parent
        lake.mkdir(parents=True, exist_ok=True)
        return SqlCatalog("sawlog", uri=f"sqlite:///{lake / CATALOG}", warehouse=lake.as_uri())

    # --- reading

    def snapshot(self) -> TableSnapshot | None:
        """Return the current snapshot. Raises `InvalidConfig` if its Parquet files alone do not represent it."""
        if not self._catalog and not (self.location.parent / CATALOG).exists():
            return None
        with self._opened() as (_, table):
            if table is None:
                return None
            said = table.properties
            if _TOPIC_ID not in said:
                raise foreign_table_error(self.location, "Iceberg")
            self._check_names(table)
            version = table.current_snapshot()
            return TableSnapshot(
                tuple(self._files(table)),
                _marks(table),
                plain(table.schema().as_arrow()),
                said[_TOPIC_ID],
                said[_TOPIC],
                tuple(filter(None, said.get(_BY, "").split(","))),
                "" if version is None else str(version.snapshot_id),
            )

    def _check_names(self, table: Opened) -> None:
        """Raise for renamed columns: the files have no column ids, so a renamed column cannot be found in them."""
        mapping = table.name_mapping()
        names = {field.field_id: field.name for field in table.schema().fields}
        for each in [] if mapping is None else mapping.root:
            now = names.get(each.field_id or -1)
            if now is not None and now not in each.names[:1]:
                raise unreadable_table_error(
                    self.location, f"its column {now} was renamed; it is {each.names[0]} in its files"
                )

    def _files(self, table: Opened) -> Iterator[DataFile]:
        from pyiceberg.conversions import from_bytes

        fields = {field.name: field for field in table.schema().fields}
        for task in table.scan().plan_files():
            if task.delete_files:
                raise unreadable_table_error(self.location, "rows of its files are deleted by delete files")
            file = task.file
            spans: dict[str, Span | None] = {}
            for name, said in SPANS.items():
                field = fields.get(name)
                first = None if field is None else file.lower_bounds.get(field.field_id)
                last = None if field is None else file.upper_bounds.get(field.field_id)
                if field is not None and first is not None and last is not None:
                    kind: Any = field.field_type
                    spans[said] = Span(int(from_bytes(kind, first)), int(from_bytes(kind, last)))
            divided = {str(number): str(file.partition[number]) for number in range(len(file.partition))}
            yield DataFile(_path(file.file_path), file.file_size_in_bytes, file.record_count, divided=divided, **spans)

    # --- writing

    def commit(self, identity: TableIdentity, change: TableCommit) -> None:
        """Commit columns, properties and files in one transaction."""
        with self._opened() as (catalog, found):
            table = found if found is not None else self._create(catalog, identity, change.schema)
            marks = json.dumps(marks_to_json(change.marks))
            with table.transaction() as transaction:
                difference = evolved(plain(table.schema().as_arrow()), change.schema)
                if difference.added or difference.widened:
                    with transaction.update_schema() as update:
                        update.union_by_name(change.schema)
                transaction.set_properties({_MARKS: marks})
                if change.removed:
                    self._swap(transaction, table, change, marks)
                else:  # also without files: the marks need a snapshot
                    transaction.add_files(
                        [each.path for each in change.added],
                        snapshot_properties={_MARKS: marks},
                        check_duplicate_files=False,
                    )

    def _create(self, catalog: Catalog, identity: TableIdentity, schema: pa.Schema) -> Opened:
        """Create an empty table without marks: a crash here loses nothing."""
        catalog.create_namespace_if_not_exists(self._name[0])
        table = catalog.create_table(
            self._name,
            schema,
            location=self.location.as_uri(),
            properties={_TOPIC: identity.topic, _TOPIC_ID: identity.topic_id, _BY: ",".join(identity.by)},
        )
        if identity.by:
            with table.update_spec() as update:
                update.add_field("timestamp", "hour" if "hour" in identity.by else "day")
        return table

    @staticmethod
    def _swap(transaction: Any, table: Opened, change: TableCommit, marks: str) -> None:
        """Replace files by others with the same rows."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        gone = {each.path for each in change.removed}
        with transaction.update_snapshot(snapshot_properties={_MARKS: marks}).overwrite() as update:
            for task in table.scan().plan_files():
                if _path(task.file.file_path) in gone:
                    update.delete_data_file(task.file)
            for each in change.added:
                update.append_data_file(parquet_file_to_data_file(table.io, transaction.table_metadata, each.path))

    def clean(self, keep_s: float) -> int:
        """Do nothing: the owner of an Iceberg table decides which snapshots expire."""
        return 0


def _path(said: str) -> str:
    found = urlparse(said)
    return unquote(found.path) if found.scheme == "file" else said


def _marks(table: Opened) -> dict[int, Mark]:
    from pyiceberg.table.snapshots import ancestors_of

    current = table.current_snapshot()
    if current is None:
        return {}
    for each in ancestors_of(current, table.metadata):
        said = None if each.summary is None else each.summary.additional_properties.get(_MARKS)
        if said is not None:
            return marks_from_json(json.loads(said))
    return marks_from_json(json.loads(table.properties.get(_MARKS, "{}")))
