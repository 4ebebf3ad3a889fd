"""Bad input, for every way to append: a typed error, and not a byte is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.errors import (
    CorruptBatch,
    InvalidConfig,
    InvalidRecord,
    InvalidRecordType,
    OffsetMismatch,
    RecordTooLarge,
    SawlogError,
    StreamAborted,
    StreamTooLong,
)
from sawlog.log import ingest
from sawlog.storage import MemoryDirectory

CONFIG = LogConfig(segment_bytes=4000, max_record_bytes=1000, checkpoint_interval_ms=3_600_000)


def everything(directory: MemoryDirectory) -> dict[str, bytes]:
    return {name: directory.read(name) for name in directory.names()}


def check_refused(call: Callable[[Log], object], error: type[SawlogError]) -> None:
    """The call raises the error, the files do not change, and the log continues."""
    directory = MemoryDirectory()
    log = Log.open(directory, CONFIG)
    log.append_many([b"a", b"b"])
    log.append(b"c")
    before = everything(directory)
    with pytest.raises(error) as caught:
        call(log)
    assert isinstance(caught.value, SawlogError)
    assert everything(directory) == before
    assert (log.next_offset, log.durable_offset) == (3, 3)
    assert log.append(b"d") == 3
    assert [record.value for record in log.scan()] == [b"a", b"b", b"c", b"d"]
    assert log.verify()
    log.close()
    with Log.open(directory, CONFIG) as log:
        assert not log.recovery.findings
        assert len(log) == 4


#: Invalid records: (value, key, headers, timestamp), and the error.
BAD_RECORDS: dict[str, tuple[tuple[Any, ...], type[SawlogError]]] = {
    "str value": (("text", None, (), None), InvalidRecordType),
    "int value": ((5, None, (), None), InvalidRecordType),
    "float value": ((1.5, None, (), None), InvalidRecordType),
    "list value": (([b"x"], None, (), None), InvalidRecordType),
    "strange value": ((object(), None, (), None), InvalidRecordType),
    "str key": ((b"v", "key", (), None), InvalidRecordType),
    "int key": ((b"v", 5, (), None), InvalidRecordType),
    "str timestamp": ((b"v", None, (), "now"), InvalidRecordType),
    "float timestamp": ((b"v", None, (), 1.5), InvalidRecordType),
    "bool timestamp": ((b"v", None, (), True), InvalidRecordType),
    "negative timestamp": ((b"v", None, (), -1), InvalidRecord),
    "timestamp in nanoseconds": ((b"v", None, (), 2**63 - 1), InvalidRecord),
    "timestamp beyond 64 bits": ((b"v", None, (), 2**63), InvalidRecord),
    "timestamp before 1970": ((b"v", None, (), datetime(1960, 1, 1, tzinfo=UTC)), InvalidRecord),
    "headers that are a number": ((b"v", None, 5, None), InvalidRecordType),
    "headers that are text": ((b"v", None, "ab", None), InvalidRecordType),
    "header without a value": ((b"v", None, [("a",)], None), InvalidRecordType),
    "header with a bytes key": ((b"v", None, [(b"a", b"b")], None), InvalidRecordType),
    "header with a None key": ((b"v", None, [(None, b"b")], None), InvalidRecordType),
    "header with a str value": ((b"v", None, {"a": "b"}, None), InvalidRecordType),
    "header with a lone surrogate": ((b"v", None, {"\ud800": b"b"}, None), InvalidRecord),
    "too large a value": ((bytes(1001), None, (), None), RecordTooLarge),
    "too large together": ((bytes(500), bytes(501), (), None), RecordTooLarge),
    "too large a header": ((b"v", None, {"a": bytes(1001)}, None), RecordTooLarge),
}


async def as_async(chunks: list[Any]) -> AsyncIterator[Any]:
    for chunk in chunks:
        yield chunk


def write(log: Log, record: tuple[Any, ...]) -> None:
    writer = log.writer()
    try:
        writer.append(*record)
    finally:
        writer.close()


#: Ways to append one record, given as (value, key, headers, timestamp).
FORMS: dict[str, Callable[[Log, tuple[Any, ...]], object]] = {
    "append": lambda log, record: log.append(*record),
    "append_many": lambda log, record: log.append_many([b"good", record, b"good"]),
    "append_many of dicts": lambda log, record: log.append_many(
        [b"good", dict(zip(("value", "key", "headers", "timestamp"), record, strict=True))]
    ),
    "append_async": lambda log, record: asyncio.run(log.append_async(*record)),
    "writer": write,
}


@pytest.mark.alternating
@pytest.mark.parametrize("bad", BAD_RECORDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_bad_record_writes_nothing(form: str, bad: str) -> None:
    record, error = BAD_RECORDS[bad]
    if form.startswith("append_many") or form == "writer":
        record = tuple(
            int(each.timestamp() * 1000) if isinstance(each, datetime) else each for each in record
        )  # these take milliseconds
    check_refused(lambda log: FORMS[form](log, record), error)


#: A stream is bounded by its segment, not by max_record_bytes.
BAD_FIELDS = [name for name in BAD_RECORDS if ("value" not in name or "header" in name) and "too large" not in name]


@pytest.mark.parametrize("bad", BAD_FIELDS)
@pytest.mark.parametrize("form", ["append_stream", "append_stream_async"])
def test_a_bad_field_of_a_stream_writes_nothing(form: str, bad: str) -> None:
    (value, key, headers, timestamp), error = BAD_RECORDS[bad]

    def call(log: Log) -> object:
        if form == "append_stream":
            return log.append_stream([value], key=key, headers=headers, timestamp=timestamp)
        made = log.append_stream_async(as_async([value]), key=key, headers=headers, timestamp=timestamp)
        return asyncio.run(made)

    check_refused(call, error)


def raising() -> Iterator[bytes]:
    yield b"x" * 100
    raise ValueError("the source is gone")


BAD_STREAMS: dict[str, tuple[Any, dict[str, Any], type[SawlogError]]] = {
    "text": ("text", {}, InvalidRecordType),
    "number": (5, {}, InvalidRecordType),
    "None": (None, {}, InvalidRecordType),
    "chunks of text": ([b"good", "text"], {}, InvalidRecordType),
    "chunks of numbers": (b"iterates as numbers", {}, InvalidRecordType),
    "None chunk": ([b"good", None], {}, InvalidRecordType),
    "raises": (raising(), {}, StreamAborted),
    "too long for the caller": ([b"x" * 60] * 3, {"max_bytes": 100}, StreamTooLong),
    "too long for the segment": ([b"x" * 1000] * 7, {}, StreamTooLong),
    "bad max_bytes": ([b"x"], {"max_bytes": "many"}, SawlogError),
    "wrong offset": ([b"x"], {"expect_offset": 7}, OffsetMismatch),
    "bad offset": ([b"x"], {"expect_offset": "7"}, SawlogError),
}


@pytest.mark.parametrize("bad", BAD_STREAMS)
def test_a_bad_stream_writes_nothing(bad: str) -> None:
    chunks, keywords, error = BAD_STREAMS[bad]
    check_refused(lambda log: log.append_stream(chunks, **keywords), error)


@pytest.mark.parametrize("bad", ["chunks of text", "None chunk", "too long for the caller", "too long for the segment"])
def test_a_bad_async_stream_writes_nothing(bad: str) -> None:
    chunks, keywords, error = BAD_STREAMS[bad]
    check_refused(lambda log: asyncio.run(log.append_stream_async(as_async(chunks), **keywords)), error)


@pytest.mark.parametrize("bad", [5, None, "text", [b"x"], raising()])
def test_what_is_not_an_async_stream_writes_nothing(bad: Any) -> None:
    check_refused(lambda log: asyncio.run(log.append_stream_async(bad)), InvalidRecordType)


@pytest.mark.parametrize("bad", [5, None, "text", object(), {"value": 3}, 1.5, [5], [object()], [(b"a",) * 5], [()]])
def test_what_is_not_a_list_of_records_writes_nothing(bad: Any) -> None:
    check_refused(lambda log: log.append_many(bad), InvalidRecordType)


def test_an_empty_list_of_records_writes_nothing() -> None:
    check_refused(lambda log: log.append_many([]), InvalidRecord)


def test_an_iterable_that_raises_writes_nothing() -> None:
    directory = MemoryDirectory()
    log = Log.open(directory, CONFIG)
    log.append(b"a")
    before = everything(directory)
    with pytest.raises(ValueError, match="the source is gone"):
        log.append_many(raising())
    assert everything(directory) == before
    assert log.append(b"b") == 1


def test_records_that_are_too_large_together_write_nothing() -> None:
    check_refused(lambda log: log.append_many([bytes(900)] * 5), RecordTooLarge)


@pytest.mark.parametrize("form", ["append", "append_many", "append_arrow", "append_stream"])
@pytest.mark.parametrize(("expected", "error"), [(2, OffsetMismatch), (4, OffsetMismatch), ("3", SawlogError)])
def test_a_wrong_expected_offset_writes_nothing(form: str, expected: Any, error: type[SawlogError]) -> None:
    what: dict[str, Any] = {
        "append": b"x",
        "append_many": [b"x"],
        "append_arrow": pa.table({"value": pa.array([b"x"])}),
        "append_stream": [b"x"],
    }
    check_refused(lambda log: getattr(log, form)(what[form], expect_offset=expected), error)


def binary(*values: bytes | None) -> Any:
    return pa.array(values, pa.binary())


BAD_TABLES: dict[str, tuple[Any, type[SawlogError]]] = {
    "text": ("text", InvalidRecord),
    "None": (None, InvalidRecord),
    "number": (5, InvalidRecord),
    "list": ([b"x"], InvalidRecord),
    "array": (binary(b"x"), InvalidRecord),
    "no value": (pa.table({"key": binary(b"x")}), InvalidRecord),
    "text values": (pa.table({"value": pa.array([1, 2])}), InvalidRecord),
    "number keys": (pa.table({"value": binary(b"x"), "key": pa.array([1])}), InvalidRecord),
    "text timestamps": (pa.table({"value": binary(b"x"), "timestamp": pa.array(["now"])}), InvalidRecord),
    "negative timestamp": (pa.table({"value": binary(b"x", b"y"), "timestamp": pa.array([1, -1])}), InvalidRecord),
    "number headers": (pa.table({"value": binary(b"x"), "headers": pa.array([1])}), InvalidRecord),
    "too large": (pa.table({"value": binary(b"x", bytes(1001))}), RecordTooLarge),
    "no rows": (pa.table({"value": binary()}), InvalidRecord),
}


@pytest.mark.parametrize("bad", BAD_TABLES)
def test_a_bad_table_writes_nothing(bad: str) -> None:
    table, error = BAD_TABLES[bad]
    check_refused(lambda log: log.append_arrow(table), error)


@pytest.mark.parametrize("last", [bytes(1001), bytes(5000)], ids=["too large a record", "too large a batch"])
def test_a_table_whose_last_row_is_bad_writes_nothing(last: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the table is so large that its first part would be placed before its last part is encoded."""
    monkeypatch.setattr(ingest, "_GROUP_BYTES", 1000)
    table = pa.table({"value": binary(*[bytes(500)] * 10, last)})
    check_refused(lambda log: log.append_arrow(table), RecordTooLarge)


def damaged(position: int) -> bytes:
    raw = bytearray(encode([b"one"]) + encode([b"two"]))
    raw[position] ^= 1
    return bytes(raw)


BAD_BATCHES: dict[str, tuple[Any, type[SawlogError]]] = {
    "text": ("text", InvalidRecordType),
    "None": (None, InvalidRecordType),
    "number": (5, InvalidRecordType),
    "list of numbers": ([1, 2], InvalidRecordType),
    "empty": (b"", InvalidRecord),
    "zeros": (bytes(100), CorruptBatch),
    "cut short": (encode([b"x"])[:-1], CorruptBatch),
    "bad magic": (damaged(16), CorruptBatch),
    "bad checksum": (damaged(20), CorruptBatch),
    "bad content of the second": (damaged(-1), CorruptBatch),
    "too large": (encode([bytes(5000)]), RecordTooLarge),
    "second too large": (encode([b"x"]) + encode([bytes(5000)]), RecordTooLarge),
}


@pytest.mark.parametrize("bad", BAD_BATCHES)
def test_bad_batches_write_nothing(bad: str) -> None:
    raw, error = BAD_BATCHES[bad]
    check_refused(lambda log: log.append_batches(raw), error)


@pytest.mark.parametrize(
    "settings", [{"batch_bytes": 0}, {"batch_bytes": -1}, {"batch_bytes": "x"}, {"linger_ms": -1}, {"linger_ms": "x"}]
)
def test_a_writer_with_bad_settings_is_refused(settings: dict[str, Any]) -> None:
    check_refused(lambda log: log.writer(**settings), InvalidConfig)


def test_a_bad_record_leaves_the_good_ones_of_a_writer() -> None:
    log = Log.in_memory(CONFIG)
    with log.writer() as writer:
        writer.append(b"one")
        for record, error in BAD_RECORDS.values():
            if not isinstance(record[3], datetime):
                with pytest.raises(error):
                    writer.append(*record)
        writer.append(b"two")
    assert [record.value for record in log.scan()] == [b"one", b"two"]


def test_a_bad_record_of_one_task_does_not_hurt_the_others() -> None:
    log = Log.in_memory(CONFIG)

    async def mixed() -> list[int | BaseException]:
        values: list[Any] = [b"one", "text", b"two", bytes(1001), b"three"]
        return await asyncio.gather(*(log.append_async(value) for value in values), return_exceptions=True)

    one, text, two, large, three = asyncio.run(mixed())
    assert (one, two, three) == (0, 1, 2)
    assert isinstance(text, InvalidRecordType)
    assert isinstance(large, RecordTooLarge)
    assert [record.value for record in log.scan()] == [b"one", b"two", b"three"]


def test_no_value_is_a_tombstone_where_it_is_allowed() -> None:
    log = Log.in_memory(CONFIG)
    log.append(None, b"key")
    log.append_many([None, (None, b"key"), {"key": b"key"}])
    assert [record.value for record in log.scan()] == [None] * 4
