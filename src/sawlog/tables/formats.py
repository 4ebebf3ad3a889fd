"""What a table format must be able to do: `Table`; and what is changed by one commit: `Change`.

All three formats promise the same: a commit happens completely or not at all, the marks are part of it, and the files
of a snapshot stay where they are until `clean` removes those that no commit younger than that has. One process writes
to a table at a time; any number read it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from ..errors import InvalidConfig
from .state import DataFile, Mark, Snapshot

FORMATS = ("delta", "iceberg", "parquet")
#: The packages that the formats need, and the extra that installs them.
_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
_INSTALL = {"delta": "pip install '.[delta]'", "iceberg": "pip install '.[iceberg]'"}


class Placed(Protocol):
    """Where a table is. `TableInfo`, which a store keeps for a topic, fits."""

    @property
    def format(self) -> str:
        """delta, iceberg or parquet."""

    @property
    def location(self) -> str:
        """Its directory, as an absolute path."""

    @property
    def catalog(self) -> Mapping[str, str]:
        """Iceberg: the properties of its catalogue; without any, it is `catalog.db` beside the table's directory."""

    @property
    def name(self) -> str:
        """Iceberg: its name in the catalogue."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place that no store keeps."""

    format: str
    location: str
    catalog: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which topic a table is made of, and how it is divided: fixed when the table is created."""

    topic: str
    topic_id: str
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One commit."""

    #: The columns afterwards, without those that divide the table.
    schema: pa.Schema
    marks: Mapping[int, Mark]
    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = field(default=())
    #: Whether rows are only moved between files: the table contains the same before and after.
    moved: bool = False


class Table(Protocol):
    """A table in one of the formats."""

    @property
    def location(self) -> Path:
        """Its directory; files may be written anywhere below it, except in names that begin with an underscore."""

    def snapshot(self) -> Snapshot | None:
        """The current commit; None if there is no table yet."""

    def commit(self, identity: Identity, change: Change) -> None:
        """Add and remove files, set the marks and the columns, in one commit; creates the table if necessary."""

    def clean(self, keep_s: float) -> int:
        """Remove files that were removed from the table longer ago than this; return how many."""


def check_package(form: str) -> None:
    """Raise if the package that a format needs is not installed."""
    package = _PACKAGES.get(form)
    if package is not None and importlib.util.find_spec(package) is None:
        raise InvalidConfig(
            f"{form.capitalize()} tables need {package}: run pip install {package}, or {_INSTALL[form]} in a clone of "
            "sawlog"
        )


def stranger(location: Path, form: str) -> InvalidConfig:
    """The error for a table that is not ours."""
    return InvalidConfig(
        f"{location} is a {form} table that `sawlog pipeline table` has not made; choose another directory"
    )


def refused(location: Path, why: str) -> InvalidConfig:
    """The error for a table that others have changed in a way that its Parquet files do not show."""
    return InvalidConfig(
        f"{location} cannot be read as Parquet files: {why}. Another program has changed it; rewrite it there without "
        "that, or read it through that program, or make a new table"
    )
