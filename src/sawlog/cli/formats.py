"""Formats of records as text: the inputs of `produce` and the format strings of `read -f`.

An input is lines, NDJSON, CSV, Parquet, or the output of `read --output ndjson`. `read_input` yields one `InputRecord`
per record, or a `BadInput` with the line or row number for invalid input, and continues after it; the caller decides
whether to stop. It reads ahead no more than necessary, so lines typed at a terminal are stored one by one. A dotted
path names a nested field: `customer.id`. Text becomes UTF-8, null stays null, everything else becomes JSON.

A format string is similar to those of kcat and rpk:

```
%t  topic          %p  partition      %o  offset
%k  key            %v  value          %s  also the value, as in kcat
%h  headers as key=value,key=value
%T  timestamp in ms since 1970        %d{%Y-%m-%d %H:%M:%S}  timestamp by strftime, local time; %d alone is ISO
%K  length of the key, -1 if null     %S  length of the value (also %V), -1 if null     %H  number of headers
%%  a percent sign                    \\n \\t \\r \\0 \\\\ \\xNN  as in C
```

`%k`, `%v`, `%s` and `%h` take an encoding: `%v{hex}`, `%v{base64}`, `%v{json}` (a JSON string; null for null).
Without one they print the bytes unchanged; null prints nothing.

A format is compiled once to a list of functions. `ValueError` reports the first error in it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ..batch.kernel import Record
from ..errors import SawlogError
from .output import plain
from .parsing import time_ms

# --- inputs

InputFormat = Literal["lines", "ndjson", "csv", "parquet", "records", "file"]


_BY_SUFFIX: dict[str, InputFormat] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
}


def kind_of(path: Path | None) -> InputFormat:
    """Return a file's format by its suffix; lines if the suffix is unknown."""
    return _BY_SUFFIX.get(path.suffix.lower(), "lines") if path is not None else "lines"


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
        "lines": _lines,
        "ndjson": partial(_objects, _from_object),
        "csv": _csv,
        "parquet": _parquet,
        "records": partial(_objects, _stored),
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
    from ..pipelines.csvfile import RowFault, read_rows

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
            yield _try(number, _parquet_entry, row, fields)


def parquet_batches(stream: BinaryIO) -> Iterator[Any]:
    """Yield the Arrow batches of a Parquet file. A pipe is read completely first: the metadata is at its end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = stream if stream.seekable() else pa.BufferReader(stream.read())
        yield from pq.ParquetFile(source).iter_batches()
    except pa.ArrowException as error:
        raise SawlogError(f"{getattr(stream, 'name', 'the input')} is not a Parquet file: {error}") from error


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
        value = whole if whole is not None else _as_json(found)
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
    return value.encode() if isinstance(value, str) else _as_json(value)


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
    return [_as_json(row) for row in batch.to_pylist()]


def _as_json(value: Any) -> bytes:
    return json.dumps(plain(value), ensure_ascii=False).encode()


# --- format strings

#: Returns the bytes to print for a record.
RecordFormat = Callable[[Record], bytes]

_TOKEN = re.compile(
    r"%(?P<letter>[a-zA-Z%])(?:(?<=d)\{(?P<time>[^}]*)\}|(?<=[kvsh])\{(?P<way>[^}]*)\})?|\\(?P<escape>x[0-9a-fA-F]{2}|.)|(?P<plain>[^%\\]+)",
    re.DOTALL,
)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_WAYS: dict[str, Callable[[bytes | None], bytes]] = {
    "": lambda data: data or b"",
    "hex": lambda data: (data or b"").hex().encode(),
    "base64": lambda data: base64.b64encode(data or b""),
    "json": _as_json,
}


def _length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


_SIMPLE: dict[str, RecordFormat] = {
    "t": lambda record: (record.topic or "").encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "K": lambda record: _length(record.key),
    "S": lambda record: _length(record.value),
    "V": lambda record: _length(record.value),
    "H": lambda record: b"%d" % len(record.headers),
    "%": lambda record: b"%",
}


def compile_format(text: str) -> RecordFormat:
    """Compile a format to a function that returns the bytes to print for a record."""
    parts: list[RecordFormat] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"{text!r}: a lone {text[position]!r} at the end; write it twice to print it")
        parts.append(_part(found, text))
        position = found.end()
    return lambda record: b"".join([part(record) for part in parts])


def _part(found: re.Match[str], text: str) -> RecordFormat:
    if found["plain"] is not None:
        return _constant(found["plain"].encode("utf-8", "surrogateescape"))
    if found["escape"] is not None:
        escape = found["escape"]
        if escape[0] == "x" and len(escape) == 3:
            return _constant(bytes.fromhex(escape[1:]))
        if escape not in _ESCAPES:
            raise ValueError(f"{text!r}: \\{escape} is not an escape; use \\n \\t \\r \\0 \\\\ and \\xNN")
        return _constant(_ESCAPES[escape])
    letter = found["letter"]
    if letter == "d":
        return _time_part(found["time"])
    if letter in "kvsh":
        return _bytes_part(letter, found["way"] or "", text)
    if letter not in _SIMPLE:
        raise ValueError(f"{text!r}: %{letter} is not known; use %t %p %o %k %v %s %h %T %d %K %S %V %H and %%")
    return _SIMPLE[letter]


def _constant(data: bytes) -> RecordFormat:
    return lambda record: data


def _bytes_part(letter: str, way: str, text: str) -> RecordFormat:
    show = _WAYS.get(way)
    if show is None:
        raise ValueError(f"{text!r}: %{letter}{{{way}}} is not known; use hex, base64 or json")
    if letter == "k":
        return lambda record: show(record.key)
    if letter == "h":
        if way == "json":
            return lambda record: _as_json(record.headers)
        return lambda record: b",".join(
            key.encode("utf-8", "surrogatepass") + b"=" + show(value) for key, value in record.headers
        )
    return lambda record: show(record.value)


def _time_part(pattern: str | None) -> RecordFormat:
    def show(record: Record) -> bytes:
        if record.timestamp < 0:
            return b""
        try:
            when = (_EPOCH + timedelta(milliseconds=record.timestamp)).astimezone()
        except (OverflowError, ValueError):
            return b"%d" % record.timestamp  # outside the range of datetime
        return (when.isoformat(timespec="milliseconds") if pattern is None else when.strftime(pattern)).encode()

    return show
