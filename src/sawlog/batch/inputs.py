"""Types of the arguments that append records, and the errors for records that cannot be stored.

pyarrow ships no types, so to a type checker `pa.Table` is `Any`. `TableInput` and `SchemaInput` declare the minimum
that its objects have. The kernel calls `record_error` to create its exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ..errors import InvalidRecord, InvalidRecordType, LogClosed, RecordTooLarge, SawlogError
from . import kernel
from .kernel import Record

#: A value or a key; None means null.
BytesInput = bytes | bytearray | memoryview | None
#: Headers by name, or as pairs, in which names may repeat.
HeadersInput = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None
#: A value alone, a `Record`, a mapping with the names of `append`'s parameters, or a tuple in their order.
RecordInput = (
    BytesInput
    | Record
    | Mapping[str, object]
    | tuple[BytesInput]
    | tuple[BytesInput, BytesInput]
    | tuple[BytesInput, BytesInput, HeadersInput]
    | tuple[BytesInput, BytesInput, HeadersInput, int | None]
)


class SchemaInput(Protocol):
    """A `pyarrow.Schema`."""

    @property
    def names(self) -> list[str]:
        """Names of the fields."""


class TableInput(Protocol):
    """A `pyarrow.Table` or a `pyarrow.RecordBatch`."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""


_REFUSALS: dict[str, tuple[type[SawlogError], str]] = {
    "type": (
        InvalidRecordType,
        "{0} must be bytes (or bytearray, memoryview, None), not {1}; encode it first, as in text.encode()",
    ),
    "timestamp_type": (InvalidRecordType, "timestamp must be whole milliseconds since 1970, not {1}"),
    "header_key": (InvalidRecordType, "a header's key must be a str that UTF-8 can encode, not {1}"),
    "headers": (
        InvalidRecordType,
        "headers must be (str, bytes) pairs or a dict, not {1}",
    ),
    "keyless": (
        InvalidRecord,
        "this topic keeps the last record of each key (cleanup.policy), so a record needs a key",
    ),
    "fields": (InvalidRecordType, "a record as a dict may have the keys value, key, headers and timestamp, not {1}"),
}


def record_error(kind: str, what: Any, value: Any) -> SawlogError:
    """Create the error for a record that cannot be stored. `kind` is a key of `_REFUSALS` or handled here."""
    if kind == "timestamp":
        hint = "; is it in microseconds or nanoseconds?" if value > kernel.MAX_TIMESTAMP else ""
        return InvalidRecord(
            f"timestamp {_shown(value)} is out of range: milliseconds since 1970, 0 to {kernel.MAX_TIMESTAMP}{hint}"
        )
    if kind == "closed":
        return LogClosed("this writer is closed")
    if kind == "too_large":
        return RecordTooLarge(
            f"a record of {what:,} bytes is larger than this log's limit of {value:,} bytes; raise max_record_bytes, "
            "split it, or stream it with append_stream"
        )
    if kind == "batch_too_large":
        return RecordTooLarge(
            f"a batch of at least {what:,} bytes exceeds the limit of {value:,} bytes; append fewer records at once, "
            "or stream a large one with append_stream"
        )
    if kind == "type" and isinstance(value, (dict, list)):
        return InvalidRecordType(
            f"{what} must be bytes, not {_shown(value)}; json.dumps(...).encode() makes bytes of it, and so does a "
            "typed view: topic.typed(value=JSON())"
        )
    error, text = _REFUSALS[kind]
    return error(text.format(what, _shown(value)))


def _shown(value: Any) -> str:
    """Return a short representation of any object, even one whose `repr` raises."""
    try:
        shown = repr(value)
    except Exception:
        return type(value).__name__
    return f"{type(value).__name__} {shown if len(shown) < 60 else shown[:57] + '...'}"
