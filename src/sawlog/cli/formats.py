"""Format strings for `read -f`, similar to those of kcat and rpk.

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
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ..batch.kernel import Record
from .output import plain

#: (topic, partition, record) -> the bytes to print.
RecordFormat = Callable[[str, int, Record], bytes]

_TOKEN = re.compile(
    r"%(?P<letter>[a-zA-Z%])(?:(?<=d)\{(?P<time>[^}]*)\}|(?<=[kvsh])\{(?P<way>[^}]*)\})?|\\(?P<escape>x[0-9a-fA-F]{2}|.)|(?P<plain>[^%\\]+)",
    re.DOTALL,
)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _as_json(data: bytes | None) -> bytes:
    return json.dumps(plain(data), ensure_ascii=False).encode()


_WAYS: dict[str, Callable[[bytes | None], bytes]] = {
    "": lambda data: data or b"",
    "hex": lambda data: (data or b"").hex().encode(),
    "base64": lambda data: base64.b64encode(data or b""),
    "json": _as_json,
}


def _length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


_SIMPLE: dict[str, RecordFormat] = {
    "t": lambda topic, partition, record: topic.encode(),
    "p": lambda topic, partition, record: b"%d" % partition,
    "o": lambda topic, partition, record: b"%d" % record.offset,
    "T": lambda topic, partition, record: b"%d" % record.timestamp,
    "K": lambda topic, partition, record: _length(record.key),
    "S": lambda topic, partition, record: _length(record.value),
    "V": lambda topic, partition, record: _length(record.value),
    "H": lambda topic, partition, record: b"%d" % len(record.headers),
    "%": lambda topic, partition, record: b"%",
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
    return lambda topic, partition, record: b"".join([part(topic, partition, record) for part in parts])


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
    return lambda topic, partition, record: data


def _bytes_part(letter: str, way: str, text: str) -> RecordFormat:
    show = _WAYS.get(way)
    if show is None:
        raise ValueError(f"{text!r}: %{letter}{{{way}}} is not known; use hex, base64 or json")
    if letter == "k":
        return lambda topic, partition, record: show(record.key)
    if letter == "h":
        if way == "json":
            return lambda topic, partition, record: json.dumps(plain(record.headers), ensure_ascii=False).encode()
        return lambda topic, partition, record: b",".join(
            key.encode("utf-8", "surrogatepass") + b"=" + show(value) for key, value in record.headers
        )
    return lambda topic, partition, record: show(record.value)


def _time_part(pattern: str | None) -> RecordFormat:
    def show(topic: str, partition: int, record: Record) -> bytes:
        if record.timestamp < 0:
            return b""
        try:
            when = (_EPOCH + timedelta(milliseconds=record.timestamp)).astimezone()
        except (OverflowError, ValueError):
            return b"%d" % record.timestamp  # outside the range of datetime
        return (when.isoformat(timespec="milliseconds") if pattern is None else when.strftime(pattern)).encode()

    return show
