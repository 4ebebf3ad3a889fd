"""Every option of `format("sawlog")`, every bad value of it: a clear error that names the option."""

from __future__ import annotations

from typing import Any

import pytest

from sawlog.errors import InvalidConfig
from sawlog.spark.options import COLUMNS, OffsetSpec, Subscription, check_range, read_options, write_options

from ..looping import for_each

READ = {"path": "data", "subscribe": "orders"}


def read(streaming: bool = False, **options: Any) -> Any:
    return read_options({**READ, **{name: str(value) for name, value in options.items()}}, streaming=streaming)


def test_defaults_are_those_of_the_kafka_source() -> None:
    found = read()
    assert found.where.path == "data"
    assert found.subscription == Subscription(topics=("orders",))
    assert (found.start, found.end) == (None, OffsetSpec("latest"))
    assert found.columns == COLUMNS
    assert found.fail_on_data_loss
    assert (found.min_partitions, found.max_records, found.max_offsets, found.group) == (None, None, None, None)
    assert found.max_delay_ms == 15 * 60_000


@for_each(
    ("given", "expected"),
    [
        ({"subscribe": "a, b,a"}, Subscription(topics=("a", "b"))),
        ({"subscribepattern": "ord.*"}, Subscription(pattern="ord.*")),
        ({"assign": '{"b": [2, 0, 2], "a": [1]}'}, Subscription(assigned=(("a", (1,)), ("b", (0, 2))))),
    ],
)
def test_what_is_read_is_said_in_one_of_three_ways(given: dict[str, str], expected: Subscription) -> None:
    assert read_options({"path": "data", **given}, streaming=False).subscription == expected


@for_each(
    "given",
    [
        {},
        {"subscribe": "a", "assign": '{"a": [0]}'},
        {"subscribe": "a", "subscribePattern": "a"},
        {"subscribe": "a,,b"},
        {"subscribe": " "},
        {"subscribePattern": "("},
        {"assign": "a"},
        {"assign": "{}"},
        {"assign": '{"a": 0}'},
        {"assign": '{"a": []}'},
        {"assign": '{"a": [-1]}'},
        {"assign": '{"a": [true]}'},
    ],
)
def test_a_subscription_that_cannot_be_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match=r"subscribe|assign"):
        read_options({"path": "data", **given}, streaming=False)


@for_each(
    ("given", "expected"),
    [
        ({"startingOffsets": "earliest"}, OffsetSpec("earliest", option="startingOffsets")),
        ({"STARTINGOFFSETS": "Latest"}, OffsetSpec("latest", option="startingOffsets")),
        (
            {"startingOffsets": '{"orders": {"1": -1, "0": 23}}'},
            OffsetSpec("offsets", each=(("orders", 0, 23), ("orders", 1, -1)), option="startingOffsets"),
        ),
        ({"startingTimestamp": "1700000000000"}, OffsetSpec("time", 1_700_000_000_000, option="startingTimestamp")),
        (
            {"startingTimestamp": "2023-11-14T22:13:20"},
            OffsetSpec("time", 1_700_000_000_000, option="startingTimestamp"),
        ),
        (
            {"startingTimestamp": "2023-11-14T23:13:20+01:00"},
            OffsetSpec("time", 1_700_000_000_000, option="startingTimestamp"),
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": 5}}'},
            OffsetSpec("times", each=(("orders", 0, 5),), option="startingOffsetsByTimestamp"),
        ),
    ],
)
def test_where_to_start(given: dict[str, str], expected: OffsetSpec) -> None:
    assert read(**given).start == expected


def test_one_time_for_all_comes_before_times_for_each_and_those_before_offsets() -> None:
    every = {
        "startingTimestamp": "7",
        "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
        "startingOffsets": "earliest",
    }
    assert read(**every).start.kind == "time"
    del every["startingTimestamp"]
    assert read(**every).start.kind == "times"


@for_each(
    ("name", "value"),
    [
        ("startingOffsets", "first"),
        ("startingOffsets", "[]"),
        ("startingOffsets", '{"orders": 3}'),
        ("startingOffsets", '{"orders": {"0": -3}}'),
        ("startingOffsets", '{"orders": {"x": 0}}'),
        ("startingOffsets", '{"orders": {"0": "7"}}'),
        ("startingOffsets", '{"orders": {"0": true}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"orders": {"0": -2}}'),
        ("startingTimestamp", "yesterday"),
        ("endingTimestamp", ""),
        ("startingOffsetsByTimestamp", "5"),
        ("startingOffsetsByTimestampStrategy", "guess"),
        ("failOnDataLoss", "maybe"),
        ("includeHeaders", "1"),
        ("columns", "key,size"),
        ("columns", "key,key"),
        ("columns", ""),
        ("minPartitions", "0"),
        ("minPartitions", "two"),
        ("maxRecordsPerPartition", "-1"),
        ("maxPartitionBytes", "much"),
        ("maxPartitionBytes", "0"),
        ("maxOffsetsPerTrigger", "1.5"),
        ("minOffsetsPerTrigger", "0"),
        ("maxTriggerDelay", "soon"),
        ("groupId", " "),
        ("isolation", "read_committed"),
        ("kafka.isolation.level", "committed"),
        ("path", ""),
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_the_option(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"(?i){name}"):
        read(**{name: value})


def test_a_missing_path_says_how_to_give_it() -> None:
    with pytest.raises(InvalidConfig, match="path"):
        read_options({"subscribe": "orders"}, streaming=False)
    with pytest.raises(InvalidConfig, match="path"):
        write_options({"topic": "orders"})


def test_a_misspelt_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidConfig, match="startingoffsets"):
        read(startingOffset="earliest")
    with pytest.raises(InvalidConfig, match="batchbytes"):
        write_options({"path": "data", "batchByte": "1"})


@for_each(
    "name",
    [
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "partition.metadata.cache.ttl.ms",
    ],
)
def test_options_of_kafkas_source_about_its_client_are_taken_and_ignored(name: str) -> None:
    assert read(**{name: "120000"}) == read()
    assert read(streaming=True, **{name: "120000"}) == read(streaming=True)


def test_a_minimum_above_the_maximum_is_refused() -> None:
    assert read(streaming=True, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=5).min_offsets == 5
    with pytest.raises(InvalidConfig, match="minOffsetsPerTrigger=6 is above maxOffsetsPerTrigger=5"):
        read(streaming=True, minOffsetsPerTrigger=6, maxOffsetsPerTrigger=5)


@for_each(
    ("given", "said"),
    [
        ({"startingOffsets": "latest"}, "latest"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "latest"),
        ({"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'}, "5 > 4"),
        ({"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"1": 9}}'}, "the same partitions"),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 9, "1": 9}}'},
            "the same partitions",
        ),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "5 > 4"),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"orders": {"0": 4}}',
            },
            "5 > 4",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"orders": {"1": 9}}',
            },
            "the same partitions",
        ),
    ],
)
def test_a_batch_whose_start_and_end_do_not_go_together_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        check_range(read(**given))


@for_each(
    "given",
    [
        {},
        {"endingOffsets": '{"orders": {"0": 4}}'},
        {"startingOffsets": '{"orders": {"0": 5}}'},
        {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 5}}'},
        {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": -1}}'},
        {"startingOffsets": '{"orders": {"0": -2}}', "endingOffsets": '{"orders": {"0": 0}}'},
        {"startingOffsets": '{"orders": {"0": 5}}', "endingTimestamp": "4"},
    ],
)
def test_a_batch_whose_start_and_end_may_go_together_is_taken(given: dict[str, str]) -> None:
    check_range(read(**given))


def test_options_of_a_broker_are_taken_and_ignored() -> None:
    assert read(**{"kafka.bootstrap.servers": "localhost:9092", "kafka.group.id": "g"}) == read()


@for_each("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(InvalidConfig, match="stream has no end"):
        read(streaming=True, **{name: "latest"})


@for_each(
    ("text", "ms"),
    [("90", 90), ("90ms", 90), ("30s", 30_000), ("15m", 900_000), ("2 hours", 7_200_000), ("1d", 86_400_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert read(maxTriggerDelay=text).max_delay_ms == ms


@for_each(("text", "size"), [("1000", 1000), ("64k", 65536), ("128MB", 128 << 20), ("1GiB", 1 << 30)])
def test_sizes(text: str, size: int) -> None:
    assert read(maxPartitionBytes=text).max_partition_bytes == size


def test_columns_are_read_in_the_order_that_is_asked_for() -> None:
    assert read(columns="offset, KEY").columns == ("offset", "key")
    assert read(includeHeaders="true").columns == (*COLUMNS, "headers")


def test_write_options() -> None:
    found = write_options({"path": "d", "topic": "t", "partitions": "4", "compression": "zstd", "lockTimeout": "5s"})
    assert (found.where.path, found.topic, found.partitions, found.compression) == ("d", "t", 4, "zstd")
    assert (found.batch_bytes, found.lock_timeout_s) == (128 << 10, 5.0)


def test_zstd_is_quick_unless_a_level_is_given() -> None:
    given = {"path": "d", "topic": "t"}
    assert write_options({**given, "compression": "zstd"}).compression_level == 1
    assert write_options({**given, "compression": "zstd", "compressionLevel": "-5"}).compression_level == -5
    assert write_options({**given, "compression": "gzip"}).compression_level is None
    with pytest.raises(InvalidConfig, match="1 to 9"):
        write_options({**given, "compression": "gzip", "compressionLevel": "10"})


def test_the_name_and_the_number_of_a_batch_go_together() -> None:
    given = {"path": "d", "topic": "t", "txnAppId": "job", "txnVersion": "0"}
    assert write_options(given).transaction == ("job", 0)
    for missing in ("txnAppId", "txnVersion"):
        with pytest.raises(InvalidConfig, match="or neither"):
            write_options({name: value for name, value in given.items() if name != missing})


@for_each(
    ("name", "value"),
    [
        ("compression", "rar"),
        ("compressionLevel", "3"),
        ("compressionLevel", "x"),
        ("partitions", "0"),
        ("batchBytes", "x"),
        ("lockTimeout", "x"),
        ("topic", ""),
    ],
)
def test_a_bad_value_of_a_write_option_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"(?i){name}"):
        write_options({"path": "d", "topic": "t", name: value})


def test_isolation_has_kafkas_name_too_and_another_default() -> None:
    assert read().isolation == "committed"
    assert read(isolation="uncommitted").isolation == "uncommitted"
    assert read(**{"kafka.isolation.level": "read_uncommitted"}).isolation == "uncommitted"
    assert read(isolation="committed", **{"kafka.isolation.level": "read_committed"}).isolation == "committed"
    with pytest.raises(InvalidConfig, match="contradict"):
        read(isolation="committed", **{"kafka.isolation.level": "read_uncommitted"})
