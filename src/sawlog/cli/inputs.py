"""Input formats of `produce`: lines, NDJSON, CSV, Parquet, and the output of `read --output ndjson`.

Each reader yields one `InputRecord` per record, or a `BadInput` with the line or row number for invalid input. A
reader continues after invalid input; the caller decides whether to stop. Readers read ahead no more than necessary, so
lines typed at a terminal are stored one by one.

A dotted path names a nested field: `customer.id`. Text becomes UTF-8, null stays null, everything else becomes JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import SawlogError
from ..pipelines.csvfile import RowFault, read_rows
from .output import plain
from .units import time_ms


class InputFormat(StrEnum):
    """The format of the input."""

    LINES = "lines"
    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"
    RECORDS = "records"
    FILE = "file"


_BY_SUFFIX = {
    ".ndjson": InputFormat.NDJSON,
    ".jsonl": InputFormat.NDJSON,
    ".csv": InputFormat.CSV,
    ".parquet": InputFormat.PARQUET,
}


def kind_of(path: Path | None) -> InputFormat:
    """Return a file's format by its suffix; lines if the suffix is unknown."""
    return _BY_SUFFIX.get(path.suffix.lower(), InputFormat.LINES) if path is not None else InputFormat.LINES


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields that become key, value and timestamp. `key` is a field name, or for lines the key itself."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    key_delimiter: str | None = None


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record, and the number of its line or row."""

    where: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None


class BadInput(SawlogError):
    """A line or row of the input that is not a valid record."""

    def __init__(self, where: int, reason: str, unit: str = "line") -> None:
        self.where, self.reason, self.unit = where, reason, unit
        super().__init__(f"{unit} {where}: {reason}")


Parts = Iterator[InputRecord | BadInput]


def read_input(kind: InputFormat, stream: BinaryIO, fields: Fields) -> Parts:
    """Yield the records of an input of any format except `file`, which is one record and is streamed."""
    readers: dict[InputFormat, Callable[[BinaryIO, Fields], Parts]] = {
        InputFormat.LINES: _lines,
        InputFormat.NDJSON: partial(_objects, _from_object),
        InputFormat.CSV: _csv,
        InputFormat.PARQUET: _parquet,
        InputFormat.RECORDS: partial(_objects, _stored),
    }
    return readers[kind](stream, fields)


# --- lines


def _lines(stream: BinaryIO, fields: Fields) -> Parts:
    key = None if fields.key is None else fields.key.encode()
    delimiter = None if fields.key_delimiter is None else fields.key_delimiter.encode()
    for number, line in enumerate(stream, 1):
        value = line.removesuffix(b"\n")
        if delimiter is None:
            yield InputRecord(number, value, key)
            continue
        before, found, after = value.partition(delimiter)
        if found:
            yield InputRecord(number, after, before)
        else:
            yield BadInput(number, f"no {fields.key_delimiter!r} after the key")


# --- objects


def _objects(make: Callable[[int, bytes, Fields], InputRecord], stream: BinaryIO, fields: Fields) -> Parts:
    """Yield one record per line that is not blank."""
    for number, line in enumerate(stream, 1):
        if text := line.strip():
            yield _try(number, make, text, fields)


def _from_object(number: int, text: bytes, fields: Fields) -> InputRecord:
    return _entry(number, _object(text), fields, text)


def _csv(stream: BinaryIO, fields: Fields) -> Parts:
    names: list[str] | None = None
    for row in read_rows(stream):
        if isinstance(row, RowFault):
            yield BadInput(row.line, row.reason)
        elif names is None:
            names = row.cells
        else:
            yield _try(row.line, _csv_entry, names, row.cells, fields)


def _csv_entry(number: int, names: list[str], row: list[str], fields: Fields) -> InputRecord:
    if len(row) != len(names):
        raise ValueError(f"{len(row)} fields, but the header has {len(names)}")
    return _entry(number, dict(zip(names, row, strict=True)), fields)


def _parquet(stream: BinaryIO, fields: Fields) -> Parts:
    number = 0
    for batch in parquet_batches(stream):
        for row in batch.to_pylist():
            number += 1
            made = _try(number, _parquet_entry, row, fields)
            yield BadInput(number, made.reason, "row") if isinstance(made, BadInput) else made


def parquet_batches(stream: BinaryIO) -> Iterator[Any]:
    """Yield the Arrow batches of a Parquet file. A pipe is read completely first: the metadata is at its end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = stream if stream.seekable() else pa.BufferReader(stream.read())
        yield from pq.ParquetFile(source).iter_batches()
    except pa.ArrowException as error:
        raise BadInput(0, f"not a Parquet file: {error}", "file") from error


def _parquet_entry(number: int, row: dict[str, Any], fields: Fields) -> InputRecord:
    if fields.value is None and "value" in row:
        row = {name: row.get(name) for name in ("value", "key", "timestamp", "headers")}
        chosen = Fields(fields.key or "key", "value", fields.timestamp or "timestamp")
        made = _entry(number, row, chosen)
        pairs = row["headers"] or ()
        headers = tuple((each["key"], each["value"]) if isinstance(each, dict) else tuple(each) for each in pairs)
        return InputRecord(number, made.value, made.key, headers, made.timestamp)
    return _entry(number, row, fields)


# --- from an object to a record


def _try(number: int, make: Callable[..., InputRecord], *arguments: Any) -> InputRecord | BadInput:
    try:
        return make(number, *arguments)
    except (ValueError, TypeError, KeyError) as error:
        return BadInput(number, str(error.args[0]) if error.args else type(error).__name__)


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)  # also accepts NaN, which JSON does not allow but others write
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, not {type(found).__name__}")
    return found


def _entry(number: int, found: dict[str, Any], fields: Fields, whole: bytes | None = None) -> InputRecord:
    key = None if fields.key is None else _as_bytes(_field(found, fields.key))
    stamp = None if fields.timestamp is None else _as_time(_field(found, fields.timestamp))
    if fields.value is not None:
        value = _as_bytes(_field(found, fields.value))
    else:
        value = whole if whole is not None else json.dumps(plain(found), ensure_ascii=False).encode()
    return InputRecord(number, value, key, (), stamp)


def _field(found: Any, path: str) -> Any:
    """Return a field by its name or, if no field has that name, by a dotted path."""
    if isinstance(found, dict) and path in found:
        return found[path]
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            raise ValueError(f"no field {path!r} in the record")
        found = found[name]
    return found


def _as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False).encode()


def _as_time(value: Any) -> int | None:
    if isinstance(value, datetime):
        return time_ms(value.isoformat())
    if isinstance(value, str):
        return int(value) if value.isdigit() and len(value) != 10 else time_ms(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{value!r} is not a time; give milliseconds since 1970 or an ISO time")


def _stored(number: int, text: bytes, fields: Fields) -> InputRecord:
    """Parse a record as `read --output ndjson` writes it."""
    found = _object(text)
    pairs: Iterable[Any] = found.get("headers") or ()
    headers = tuple((each["key"], _unmarked(each.get("value"))) for each in pairs)
    stamp = found.get("timestamp")
    if stamp is not None and (not isinstance(stamp, int) or isinstance(stamp, bool)):
        raise ValueError(f"timestamp {stamp!r} is not milliseconds since 1970")
    if "value" not in found:
        raise ValueError("no field 'value' in the record; expected the output of `read --output ndjson`")
    when = None if stamp is None or stamp < 0 else stamp
    return InputRecord(number, _unmarked(found["value"]), _unmarked(found.get("key")), headers, when)


def _unmarked(value: Any) -> bytes | None:
    """Return the bytes that `plain` encoded."""
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return _as_bytes(value)


def plain_rows(batch: Any) -> list[bytes]:
    """Return the rows of an Arrow batch as JSON objects."""
    return [json.dumps(plain(row), ensure_ascii=False).encode() for row in batch.to_pylist()]
