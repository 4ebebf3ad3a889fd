"""The interface of a table format, `Table`, and the changes of one commit, `TableCommit`.

All three formats guarantee the same: a commit happens completely or not at all, the marks are part of it, and the files
of a snapshot remain until `clean` removes those that every commit younger than its limit has dropped. One process
writes to a table at a time; any number read it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from ..errors import InvalidConfig
from .state import DataFile, Mark, TableSnapshot

FORMATS = ("delta", "iceberg", "parquet")
#: The packages that the formats need, and the extra that installs them.
_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
_INSTALL = {"delta": "pip install '.[delta]'", "iceberg": "pip install '.[iceberg]'"}


class TableLocation(Protocol):
    """Location of a table. `TableInfo`, which a store keeps for a topic, satisfies it."""

    @property
    def format(self) -> str:
        """delta, iceberg or parquet."""

    @property
    def location(self) -> str:
        """Absolute path of its directory."""

    @property
    def catalog(self) -> Mapping[str, str]:
        """Iceberg: properties of the catalogue; if empty, `catalog.db` next to the table's directory."""

    @property
    def name(self) -> str:
        """Iceberg: name in the catalogue."""


@dataclass(frozen=True, slots=True)
class UnregisteredTable:
    """A location that no store keeps."""

    format: str
    location: str
    catalog: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


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
            f"{form.capitalize()} tables need {package}: run pip install {package}, or {_INSTALL[form]} in a clone of "
            "sawlog"
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
