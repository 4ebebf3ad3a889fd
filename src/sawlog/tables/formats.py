"""The interface of a table format, `Table`, and its values: `TableSnapshot`, a table at one commit; `TableCommit`, the
changes of one; `Mark`, the range of a partition that a table contains.

All three formats guarantee the same: a commit happens completely or not at all, the marks are part of it, and the files
of a snapshot remain until `clean` removes those that every commit younger than its limit has dropped. One process
writes to a table at a time; any number read it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from ..errors import InvalidConfig
from .columns import column_of, value_fields


class Mark(NamedTuple):
    """The part of a partition in a table: start <= offset < end."""

    start: int
    end: int
    #: The leader epoch in which `end` was looked up: it reveals whether the log still has the same records before it.
    epoch: int = -1


class Span(NamedTuple):
    """The first and the last value of a range, both inclusive."""

    first: int
    last: int


#: Fields of `DataFile` with the range of a column, by column.
SPANS = {"partition": "partitions", "offset": "offsets", "timestamp": "times_us"}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table. Unknown values are None."""

    path: str
    size_bytes: int
    rows: int | None = None
    partitions: Span | None = None
    offsets: Span | None = None
    #: Microseconds since 1970.
    times_us: Span | None = None
    #: The values of the partition columns, such as {"date": "2026-01-31"}.
    divided: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def partition(self) -> int | None:
        """Its only partition; None if it has several, or if that is unknown."""
        span = self.partitions
        return span.first if span is not None and span.first == span.last else None

    def is_within(self, ends: Mapping[int, int]) -> bool:
        """Return whether all its records are known to be below these ends."""
        if self.partitions is None or self.offsets is None:
            return False
        numbers = range(self.partitions.first, self.partitions.last + 1)
        return all(self.offsets.last < ends.get(number, 0) for number in numbers)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table at one commit."""

    data: Sequence[DataFile]
    marks: Mapping[int, Mark]
    schema: pa.Schema
    #: The id and the name of its topic.
    topic_id: str
    topic: str
    #: The partition columns.
    by: tuple[str, ...] = ()
    #: The format's name for this commit.
    version: str = ""

    @property
    def files(self) -> list[str]:
        return [each.path for each in self.data]

    @property
    def fields(self) -> dict[str, str]:
        """Columns by the value field they hold."""
        return {field: column_of(field) for field in value_fields(self.schema).names}

    @property
    def ends(self) -> dict[int, int]:
        """The next offset of every partition: records from there on are only in the log."""
        return {number: mark.end for number, mark in self.marks.items()}

    @property
    def rows(self) -> int | None:
        counts = [each.rows for each in self.data]
        return None if None in counts else sum(count for count in counts if count is not None)


def file_to_json(file: DataFile, root: str) -> dict[str, Any]:
    """Convert to JSON, with a path relative to `root`."""
    return {**asdict(file), "path": str(PurePath(file.path).relative_to(root))}


def file_from_json(found: Mapping[str, Any], root: str) -> DataFile:
    known = {name: None if found[name] is None else Span(*found[name]) for name in SPANS.values()}
    return DataFile(**{**found, **known, "path": str(PurePath(root) / found["path"])})


def marks_to_json(marks: Mapping[int, Mark]) -> dict[str, list[int]]:
    """Convert to JSON, for a document or a table property."""
    return {str(number): list(mark) for number, mark in sorted(marks.items())}


def marks_from_json(found: Mapping[str, Any]) -> dict[int, Mark]:
    return {int(number): Mark(*map(int, mark)) for number, mark in found.items()}


def total(marks: Mapping[int, Mark]) -> int:
    return sum(mark.end - mark.start for mark in marks.values())


def span_of(values: Iterable[Span | None]) -> Span | None:
    """Return the smallest span that covers all; None if one of them is unknown, or there is none."""
    found = list(values)
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return Span(min(each.first for each in known), max(each.last for each in known))


FORMATS = ("delta", "iceberg", "parquet")
#: The packages that the formats need. The extras `sql` and `spark` have both.
_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """The topic and the partition columns of a table, fixed when it is created."""

    topic: str
    topic_id: str
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit."""

    #: The resulting columns, without the partition columns.
    schema: pa.Schema
    marks: Mapping[int, Mark]
    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = field(default=())
    #: Rows are only moved between files: the contents of the table do not change.
    moved: bool = False


class Table(Protocol):
    """A table in one of the formats."""

    @property
    def location(self) -> Path:
        """Its directory; files may be written anywhere below it, except in names that begin with an underscore."""

    def snapshot(self) -> TableSnapshot | None:
        """Return the current commit; None if there is no table yet."""

    def commit(self, identity: TableIdentity, change: TableCommit) -> None:
        """Add and remove files, set the marks and the columns, in one commit; create the table if necessary."""

    def clean(self, keep_s: float) -> int:
        """Delete files that were removed from the table longer ago than this; return their number."""


def check_package(form: str) -> None:
    """Raise if the package that a format needs is not installed."""
    package = _PACKAGES.get(form)
    if package is not None and importlib.util.find_spec(package) is None:
        raise InvalidConfig(
            f"{form.capitalize()} tables need {package}: run pip install {package}, or pip install '.[sql]' in a "
            "clone of sawlog"
        )


def foreign_table_error(location: Path, form: str) -> InvalidConfig:
    """Return the error for a table that sawlog did not create."""
    return InvalidConfig(
        f"{location} is a {form} table that `sawlog pipeline table` has not made; choose another directory"
    )


def unreadable_table_error(location: Path, why: str) -> InvalidConfig:
    """Return the error for a table that another program changed in a way its Parquet files do not show."""
    return InvalidConfig(
        f"{location} cannot be read as Parquet files: {why}. Another program has changed it; rewrite it there without "
        "that, or read it through that program, or make a new table"
    )
