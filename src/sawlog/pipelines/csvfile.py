"""CSV as defined by RFC 4180, read the same way by `sawlog produce` and by `ingest`.

A quoted cell may contain commas, newlines and doubled quotes. The text is UTF-8, with or without a byte order mark.
Nothing is corrected: an unclosed quote, text after a closing quote, and bytes that are not UTF-8 are a `RowFault`. Rows
are read one by one, so a file may be larger than memory.

`CsvFile` is a whole file with its header: rows with more or fewer cells than the header are rejected, and an error
names file, row and line. Rows are counted from 1 after the header, lines from 1 at the top of the file.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..errors import InvalidRecord

#: A cell may be as large as a record; Python's default limit is 128 KiB.
_CELL_MOST = (1 << 31) - 1
#: pyarrow's names for file systems that Hadoop, and so Spark, names differently.
_SCHEMES = {"s3a": "s3", "s3n": "s3"}


class BadRow(InvalidRecord):
    """A rejected row of a CSV file; the message has file, row, line and reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row, and the line on which it ends."""

    line: int
    cells: list[str]


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that is not valid CSV, and the line of the error."""

    line: int
    reason: str


def read_rows(stream: BinaryIO) -> Iterator[Row | RowFault]:
    """Yield the rows of a stream, without empty lines. Continues after a fault, except where bytes are not UTF-8."""
    csv.field_size_limit(_CELL_MOST)
    yield from _rows(csv.reader(_lines(stream), strict=True))


def _lines(stream: BinaryIO) -> Iterator[str]:
    """Yield lines that end with \\n, \\r\\n or \\r. Decodes them one by one, to report the line that is not UTF-8."""
    encoding = "utf-8-sig"
    for line in stream:
        text = line.decode(encoding)
        encoding = "utf-8"
        if "\r" in text:
            yield from io.StringIO(text, newline="")
        else:
            yield text


def _rows(reader: Any) -> Iterator[Row | RowFault]:
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield RowFault(reader.line_num, str(error))
            continue
        except UnicodeDecodeError as error:
            yield RowFault(reader.line_num + 1, f"not UTF-8: {error}")
            return  # the decoder cannot resume
        if cells:
            yield Row(reader.line_num, cells)


# --- files


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A file listed by Spark: its path, and whether its first row is a header."""

    path: str
    header: bool = True

    @property
    def name(self) -> str:
        """File name for messages."""
        return self.path.removeprefix("file://").removeprefix("file:")

    def names(self) -> list[str] | None:
        """Return the column names; None if the file is empty."""
        with self._opened() as stream:
            return self._names(read_rows(stream))

    def rows(self, names: Sequence[str]) -> Iterator[tuple[int, Row]]:
        """Yield numbered rows. Raises `BadRow` if the header differs from these names or a row does not fit."""
        with self._opened() as stream:
            found = read_rows(stream)
            if self.header:
                given = self._names(found)
                if given is not None and [each.casefold() for each in given] != [each.casefold() for each in names]:
                    raise self.bad(0, 1, f"the header is {','.join(given)}, expected {','.join(names)}")
            for number, each in enumerate(found, 1):
                if isinstance(each, RowFault):
                    raise self.bad(number, each.line, each.reason)
                if len(each.cells) != len(names):
                    raise self.bad(number, each.line, f"{len(each.cells)} cells, but {len(names)} columns")
                yield number, each

    def bad(self, row: int, line: int, reason: str) -> BadRow:
        """Return the error for a row; row 0 is the header."""
        where = f"row {row}, line {line}" if row else f"line {line}"
        return BadRow(f"{self.name}, {where}: {' '.join(reason.split())}")

    def _names(self, rows: Iterator[Row | RowFault]) -> list[str] | None:
        first = next(rows, None)
        if isinstance(first, RowFault):
            raise self.bad(0 if self.header else 1, first.line, first.reason)
        if first is None:
            return None
        return first.cells if self.header else [f"_c{number}" for number in range(len(first.cells))]

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """Open the file, decompressed by its suffix (.gz, .bz2, .zst, .lz4)."""
        import pyarrow as pa
        from pyarrow import fs

        try:
            if self.path.startswith("file:") or "://" not in self.path:
                system, path = fs.LocalFileSystem(), self.name
            else:
                scheme, rest = self.path.split("://", 1)
                system, path = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{rest}")
            with system.open_input_stream(path, compression="detect") as stream:
                yield io.BufferedReader(stream)
        except (OSError, pa.ArrowException) as error:
            raise BadRow(f"{self.name}: cannot be read: {' '.join(str(error).split())}") from error


# --- types

#: Cells that convert to a number and back without loss: no leading zeros, plus signs or exponents, and no more digits
#: than a double holds.
_LOOKS: dict[str, re.Pattern[str]] = {
    "boolean": re.compile(r"true|false"),
    "bigint": re.compile(r"0|-?[1-9][0-9]{0,14}"),
    "double": re.compile(r"(?=[-0-9.]{1,16}$)-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"),
}
_ANY = "string"


def looks_like(kind: str) -> Callable[[str], object]:
    """Return a predicate for non-empty cells that fit an inferred type."""
    found = _LOOKS.get(kind)
    return (lambda cell: True) if found is None else found.fullmatch


def kind_of(cell: str) -> str:
    """Return the narrowest type of a cell; empty for an empty cell."""
    return next((kind for kind, look in _LOOKS.items() if look.fullmatch(cell)), _ANY) if cell else ""


def widened(one: str, other: str) -> str:
    """Return the narrowest type that can hold both."""
    if one == other or not other:
        return one
    if not one:
        return other
    return "double" if {one, other} == {"bigint", "double"} else _ANY


def kinds_of(file: CsvFile, names: Sequence[str]) -> list[str]:
    """Return the narrowest type of each column of a file; empty for a column without a value."""
    kinds = [""] * len(names)
    for _, row in file.rows(names):
        for column, cell in enumerate(row.cells):
            if kinds[column] != _ANY:
                kinds[column] = widened(kinds[column], kind_of(cell))
    return kinds
