"""`sawlog produce`: input is stored unchanged, and invalid input loses no valid record."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sawlog import Record
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.partitioner import partition_for

from .conftest import Cli


@pytest.fixture
def topic(sawlog: Cli) -> Cli:
    """A store with an empty topic `t` of one partition."""
    sawlog("topic", "create", "t", "--set", "durability=os").ok()
    return sawlog


def stored(data: Path, topic: str = "t") -> list[Record]:
    with DirectoryStore.open(data, mode="r") as store:
        return list(store.topic(topic).scan())


def values(data: Path, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in stored(data, topic)]


def test_each_line_is_a_record(topic: Cli, data: Path) -> None:
    result = topic("produce", "t", stdin=b"one\n\ntwo \xff\nlast").ok()
    assert values(data) == [b"one", b"", b"two \xff", b"last"]
    assert result.raw == b""
    assert "4 records to t" in result.err


def test_summary_for_programs_goes_to_stdout(topic: Cli) -> None:
    found = topic("produce", "t", "--output", "json", stdin=b"a\nb\n").ok().json
    assert (found["topic"], found["records"], found["size_bytes"], found["skipped"]) == ("t", 2, 2, 0)


def test_key_of_lines_is_before_the_delimiter(topic: Cli, data: Path) -> None:
    topic("produce", "t", "--key-delimiter", ":", stdin=b"a:1\nb:2:3\n:4\n").ok()
    assert [(each.key, each.value) for each in stored(data)] == [(b"a", b"1"), (b"b", b"2:3"), (b"", b"4")]


def test_line_without_the_delimiter_stops_with_its_number(topic: Cli, data: Path) -> None:
    complaint = topic("produce", "t", "--key-delimiter", ":", stdin=b"a:1\nwrong\nb:2\n").failed(1)
    assert "stdin, line 2" in complaint
    assert values(data) == [b"1"]


def test_constant_key_and_headers(topic: Cli, data: Path) -> None:
    topic("produce", "t", "--key", "k", "--header", "a=1", "-H", "b=x=y", stdin=b"v\n").ok()
    [record] = stored(data)
    assert (record.key, record.headers) == (b"k", (("a", b"1"), ("b", b"x=y")))


def test_ndjson_stores_the_line_or_the_chosen_field(topic: Cli, data: Path) -> None:
    one = b'{"id": 7,  "who": {"name": "ann"}, "at": 1700000000123}'
    two = b'{"id": 8, "who": {"name": null}, "at": "2026-11-01T00:00:00Z"}'
    topic("produce", "t", "--input", "ndjson", "--key", "who.name", "--timestamp", "at", stdin=one + b"\n\n" + two).ok()
    first, second = stored(data)
    assert first.value == one
    assert (first.key, first.timestamp) == (b"ann", 1_700_000_000_123)
    assert (second.key, second.timestamp) == (None, 1_793_491_200_000)


@pytest.mark.parametrize(
    ("value", "stored_as"),
    [('"text"', b"text"), ("5", b"5"), ("null", None), ('{"b": 1}', b'{"b": 1}'), ("true", b"true")],
)
def test_field_becomes_bytes(topic: Cli, data: Path, value: str, stored_as: bytes | None) -> None:
    topic("produce", "t", "-i", "ndjson", "--value", "a", stdin=f'{{"a": {value}}}'.encode()).ok()
    assert values(data) == [stored_as]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("{", "not JSON"), ("[1]", "expected a JSON object"), ('{"b": 1}', "no field 'a'"), ("\udcff", "not JSON")],
)
def test_bad_json_stops_with_its_number_and_nothing_before_is_lost(
    topic: Cli, data: Path, line: str, complaint: str
) -> None:
    stdin = b'{"a": 1}\n{"a": 2}\n' + line.encode("utf-8", "surrogateescape") + b'\n{"a": 4}\n'
    said = topic("produce", "t", "-i", "ndjson", "--key", "a", stdin=stdin).failed(1)
    assert "line 3" in said
    assert complaint in said
    assert [each.key for each in stored(data)] == [b"1", b"2"]


def test_bad_json_can_be_skipped(topic: Cli, data: Path) -> None:
    result = topic("produce", "t", "-i", "ndjson", "--on-error", "skip", stdin=b'{"a": 1}\nnope\n{"a": 3}\n').ok()
    assert values(data) == [b'{"a": 1}', b'{"a": 3}']
    assert "skipped stdin, line 2" in result.err
    assert "1 skipped" in result.err


def test_csv_rows_are_objects_or_fields(topic: Cli, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text('symbol,price\nX,"1,5"\n"Y\nZ",2\n', encoding="utf-8")
    topic("produce", "t", file, "--key", "symbol", "--value", "price").ok()
    topic("produce", "t", file).ok()
    first, second, third, _ = stored(data)
    assert (first.key, first.value) == (b"X", b"1,5")
    assert second.key == b"Y\nZ"
    assert json.loads(third.value or b"") == {"symbol": "X", "price": "1,5"}


def test_csv_row_with_too_many_fields_stops_with_its_line(topic: Cli, data: Path) -> None:
    said = topic("produce", "t", "-i", "csv", stdin=b"a,b\n1,2\n1,2,3\n").failed(1)
    assert "line 3: 3 fields, but the header has 2" in said
    assert len(values(data)) == 1


def test_csv_that_is_not_text_stops_with_its_line(topic: Cli, data: Path) -> None:
    assert "not UTF-8" in topic("produce", "t", "-i", "csv", stdin=b"a,b\n1,2\n\xff,4\n").failed(1)


def test_parquet_of_any_columns_becomes_objects(topic: Cli, data: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", None]}), tmp_path / "t.parquet")
    topic("produce", "t", tmp_path / "t.parquet").ok()
    topic("produce", "t", tmp_path / "t.parquet", "--key", "id", "--value", "name").ok()
    found = stored(data)
    assert [json.loads(each.value or b"") for each in found[:2]] == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert [(each.key, each.value) for each in found[2:]] == [(b"1", b"a"), (b"2", None)]


def test_parquet_with_a_value_column_is_taken_as_records(topic: Cli, data: Path, tmp_path: Path) -> None:
    table = pa.table(
        {"value": [b"v", None], "key": ["k", None], "timestamp": pa.array([5, 6], pa.timestamp("ms", "UTC"))}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    topic("produce", "t", tmp_path / "t.parquet").ok()
    topic("produce", "t", tmp_path / "t.parquet", "--header", "a=1").ok()
    found = [(each.value, each.key, each.timestamp, len(each.headers)) for each in stored(data)]
    assert found == [(b"v", b"k", 5, 0), (None, None, 6, 0), (b"v", b"k", 5, 1), (None, None, 6, 1)]


def test_parquet_from_a_pipe(topic: Cli, data: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"value": [b"v"]}), tmp_path / "t.parquet")
    topic("produce", "t", "-i", "parquet", stdin=(tmp_path / "t.parquet").read_bytes()).ok()
    assert values(data) == [b"v"]


def test_a_file_that_is_not_parquet_is_named(topic: Cli, tmp_path: Path) -> None:
    assert "is not a Parquet file" in topic("produce", "t", "-i", "parquet", stdin=b"hello").failed(1)
    (tmp_path / "bad.parquet").write_text("hello")
    assert f"{tmp_path / 'bad.parquet'} is not a Parquet file" in topic(
        "produce", "t", tmp_path / "bad.parquet"
    ).failed(1)


def test_a_refused_row_of_a_parquet_file_is_named_by_its_number(sawlog: Cli, data: Path, tmp_path: Path) -> None:
    sawlog("topic", "create", "state", "--set", "cleanup.policy=compact").ok()
    pq.write_table(pa.table({"value": [b"a", b"b"], "key": ["k", None]}), tmp_path / "t.parquet")
    message = sawlog("produce", "state", tmp_path / "t.parquet", "--empty-is-null").failed(1)
    assert f"{tmp_path / 't.parquet'}, row 2: the topic state keeps the last record of each key" in message


def test_file_is_one_record(topic: Cli, data: Path, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "cat.jpg").write_bytes(content)
    topic("produce", "t", tmp_path / "cat.jpg", "--input", "file", "--key", "cat", "--header", "type=jpeg").ok()
    [record] = stored(data)
    assert (record.key, record.value, record.headers) == (b"cat", content, (("type", b"jpeg"),))


def test_several_files_and_stdin_between_them(topic: Cli, data: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"4\n")
    topic("produce", "t", tmp_path / "a", "-", tmp_path / "b", stdin=b"3\n").ok()
    assert values(data) == [b"1", b"2", b"3", b"4"]


def test_missing_file_is_not_found(topic: Cli, tmp_path: Path) -> None:
    assert "nowhere" in topic("produce", "t", tmp_path / "nowhere").failed(3)


def test_ndjson_output_can_be_produced_again_unchanged(sawlog: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store:
        store.topic("orders").append(b"\xff\x00", b"base64:", [("h", None), ("i", b"\xfe")], 1, partition=0)
    sawlog("topic", "create", "copy").ok()
    written = sawlog("read", "orders", "--output", "ndjson").ok().raw
    sawlog("produce", "copy", "--input", "records", stdin=written).ok()
    fields = [[(r.key, r.value, r.headers, r.timestamp) for r in stored(orders, name)] for name in ("orders", "copy")]
    assert fields[0] == fields[1]


def test_key_decides_the_partition_as_in_kafka(sawlog: Cli, data: Path) -> None:
    sawlog("topic", "create", "many", "--partitions", 5).ok()
    lines = b"".join(b"k%d:v\n" % number for number in range(40))
    for more in ([], ["--compression", "zstd"]):
        sawlog("produce", "many", "--key-delimiter", ":", *more, stdin=lines).ok()
    with DirectoryStore.open(data, mode="r") as store:
        for number in range(5):
            keys = [record.key for record in store.topic("many").partition(number).scan()]
            assert keys
            assert {partition_for(key, 5) for key in keys if key is not None} == {number}


@pytest.mark.parametrize("more", [[], ["-z", "lz4"]])
def test_partition_can_be_chosen(sawlog: Cli, orders: Path, more: list[str]) -> None:
    sawlog("produce", "orders", "--partition", 1, *more, stdin=b"x\ny\n").ok()
    with DirectoryStore.open(orders, mode="r") as store:
        assert [record.value for record in store.topic("orders").partition(1).scan(5)] == [b"x", b"y"]


def test_partition_that_is_not_there_is_a_usage_error(sawlog: Cli, orders: Path) -> None:
    assert "0 to 1" in sawlog("produce", "orders", "-p", 2, stdin=b"x\n").failed(2)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_are_stored_with_the_requested_compression(topic: Cli, data: Path, codec: str) -> None:
    topic("produce", "t", "-z", codec, stdin=b"the same again and again\n" * 500).ok()
    assert values(data) == [b"the same again and again"] * 500
    [row] = topic("stats", "t", "--output", "json").json["partitions"]
    assert row["codecs"] == codec


def test_empty_value_can_mean_null(topic: Cli, data: Path) -> None:
    topic("produce", "t", "-K", ":", "--empty-is-null", stdin=b"a:1\na:\n").ok()
    assert values(data) == [b"1", None]


@pytest.mark.parametrize("more", [[], ["-z", "zstd"], ["-p", "0"], ["-p", "0", "-z", "zstd"]])
def test_a_record_without_a_key_for_a_compacted_topic_is_refused_with_its_line(
    sawlog: Cli, data: Path, more: list[str]
) -> None:
    sawlog("topic", "create", "state", "--set", "cleanup.policy=compact").ok()
    said = sawlog("produce", "state", *more, stdin=b"no key\n").failed(1)
    assert "stdin, line 1" in said
    assert "key" in said
    assert "needs a key" in sawlog("produce", "state", "--input", "file", stdin=b"no key").failed(1)
    sawlog("produce", "state", "--key", "k", *more, stdin=b"v\n").ok()
    assert values(data, "state") == [b"v"]


@pytest.mark.parametrize("more", [[], ["-z", "zstd"], ["-p", "0"]])
def test_record_that_is_too_large_stops_with_its_line(sawlog: Cli, data: Path, more: list[str]) -> None:
    sawlog("topic", "create", "small", "--set", "max.record.bytes=100").ok()
    said = sawlog("produce", "small", *more, stdin=b"short\n" + b"x" * 500 + b"\nshort\n").failed(1)
    assert "stdin, line 2" in said
    assert values(data, "small") == [b"short"]


@pytest.mark.parametrize("more", [[], ["-z", "zstd"], ["-p", "0"]])
def test_an_invalid_time_stops_at_its_line_and_keeps_earlier_records(topic: Cli, data: Path, more: list[str]) -> None:
    lines = b'{"at": 5}\n{"at": -5}\n{"at": 7}\n'
    arguments = ["produce", "t", "-i", "ndjson", "--timestamp", "at", *more]
    assert "stdin, line 2" in topic(*arguments, stdin=lines).failed(1)
    topic(*arguments, "--on-error", "skip", stdin=lines).ok()
    assert [record.timestamp for record in stored(data)] == [5, 5, 7]


@pytest.mark.parametrize("more", [[], ["-z", "zstd"]])
def test_small_segments_get_small_batches_and_refuse_what_does_not_fit(
    sawlog: Cli, data: Path, more: list[str]
) -> None:
    sawlog("topic", "create", "small", "--set", "segment.bytes=2000", "--set", "durability=os").ok()
    lines = [os.urandom(40).hex().encode() for _ in range(200)]
    huge = os.urandom(4000).hex().encode()
    stdin = b"\n".join([*lines[:100], huge, *lines[100:]])
    result = sawlog("produce", "small", *more, "--on-error", "skip", stdin=stdin).ok()
    assert "skipped stdin, line 101" in result.err
    assert values(data, "small") == lines


def test_large_records_are_packed_too(topic: Cli, data: Path) -> None:
    lines = [b"small", b"x" * 1_000_000, b"small again"]
    topic("produce", "t", "-z", "zstd", stdin=b"\n".join(lines)).ok()
    assert values(data) == lines


def test_rate_limits_the_records_per_second(topic: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("sawlog.cli.produce.sleep", slept.append)
    monkeypatch.setattr("sawlog.cli.produce.monotonic", lambda: 100.0)  # time passes only while sleeping
    topic("produce", "t", "--rate", 10, stdin=b"a\nb\nc\n").ok()
    assert slept == pytest.approx([0.1, 0.2, 0.3])


def test_produce_creates_neither_store_nor_topic_by_itself(
    sawlog: Cli, data: Path, orders: Path, tmp_path: Path
) -> None:
    result = sawlog("produce", "nope", "--output", "json", stdin=b"x\n")
    assert "nope" in result.failed(3)
    assert result.raw == b""
    assert "no store in" in sawlog("produce", "orders", "-d", tmp_path / "other", stdin=b"x\n").failed(3)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--header", "novalue"], "KEY=VALUE"),
        (["--key", "a", "--key-delimiter", ":"], "not both"),
        (["--input", "xml"], "--input"),
        (["--rate", "0"], "--rate"),
        (["--value", "a"], "--value"),
        (["--input", "file", "--timestamp", "a"], "--timestamp"),
        (["--input", "ndjson", "--key-delimiter", ":"], "--key-delimiter"),
        (["--input", "records", "--key", "a"], "--key"),
        (["--input", "file", "--compression", "zstd"], "--compression"),
        (["--compression", "rar"], "--compression"),
        (["--partition", "-1"], "--partition"),
    ],
)
def test_wrong_option_is_a_usage_error(topic: Cli, arguments: list[str], complaint: str) -> None:
    assert complaint in topic("produce", "t", *arguments, stdin=b"x\n").failed(2)


def test_produce_creates_the_topic_on_request(sawlog: Cli, data: Path) -> None:
    assert "no store" in sawlog("produce", "new", stdin=b"x\n").failed(3)
    assert "new: created, 1 partition" in sawlog("produce", "new", "--create", stdin=b"one\n").ok().err
    assert "created" not in sawlog("produce", "new", "--create", stdin=b"two\n").ok().err
    assert values(data, "new") == [b"one", b"two"]


def test_create_leaves_an_existing_topic_unchanged(sawlog: Cli, data: Path) -> None:
    sawlog("topic", "create", "t", "--partitions", 3, "--set", "compression.type=zstd").ok()
    sawlog("produce", "t", "--create", stdin=b"one\n").ok()
    with DirectoryStore.open(data, mode="r") as store:
        assert (store["t"].partitions, store["t"].settings["compression.type"]) == (3, "zstd")
