"""Kafka's own tools: DumpLogSegments checks an export, and a real broker serves it and is imported.

Skipped without Kafka's jars or Java (tools/fetch_kafka.py).
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from sawlog import interop
from sawlog.errors import RecordRemoved, SourceInUse
from sawlog.interop import Kind
from sawlog.store.directory.store import DirectoryStore

from .brokers import Broker, dump, needs_kafka

pytestmark = needs_kafka

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
#: Messages of DumpLogSegments about damage.
COMPLAINTS = re.compile(r"(?i)mismatch|invalid|corrupt|non-consecutive|exception|error|could not|isvalid: false")


def records(count: int) -> list[tuple[Any, ...]]:
    """Records with and without key and headers, some of them null, a second apart."""
    made: list[tuple[Any, ...]] = []
    for number in range(count):
        value = None if number % 17 == 3 else b"value %d " % number * (number % 9)
        key = None if number % 5 == 1 else b"key %d" % number
        headers = [("name", b"%d" % number), ("empty", None)] if number % 3 == 0 else []
        made.append((value, key, headers, 1_700_000_000_000 + 1000 * number))
    return made


# --- DumpLogSegments


def test_dump_log_segments_accepts_every_compression(tmp_path: Path) -> None:
    made = records(3000)
    with DirectoryStore.open(tmp_path / "data") as store:
        for codec in COMPRESSIONS:
            topic = store.create_topic(codec, compression_type=codec, segment_bytes=100_000, durability="os")
            log = topic.partition(0)
            log._advance(500)
            for first in range(0, len(made), 50):
                log.append_many(made[first : first + 50])
            interop.export_topic(topic, tmp_path / "kafka", format="kafka")
    paths = sorted(tmp_path.glob("kafka/*/*.log")) + sorted(tmp_path.glob("kafka/*/*index"))
    said = dump(paths)
    assert said.count("Dumping") == len(paths) > 3 * len(COMPRESSIONS)
    assert COMPLAINTS.search(said) is None, said[:2000]
    assert len(re.findall(r"^\| offset: ", said, re.MULTILINE)) == len(made) * len(COMPRESSIONS)
    for codec in COMPRESSIONS:
        assert f"compresscodec: {codec}" in said
    assert "payload: value 2999" in said
    assert said.count("isvalid: true") == len(made) // 50 * len(COMPRESSIONS)


def test_dump_log_segments_detects_damage(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = store.create_topic("t", durability="os")
        topic.partition(0).append_many(records(50))
        interop.export_topic(topic, tmp_path / "kafka", format="kafka")
    path = next(tmp_path.glob("kafka/t-0/*.log"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    assert COMPLAINTS.search(dump([path])) is not None


# --- a broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    return Broker(tmp_path_factory.mktemp("broker"))


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def seen(record: Any) -> list[Any]:
    """Return a sawlog record in the form that the client reports."""
    headers = [[name, text(value)] for name, value in record.headers]
    return [record.offset, text(record.key), text(record.value), headers, record.timestamp]


def sent(made: list[tuple[Any, ...]]) -> list[Any]:
    """Records as the client takes them: no header is null, nor key and value both."""
    return [
        [
            "" if value is key is None else text(value),
            text(key),
            [[name, text(h)] for name, h in headers if h is not None],
            stamp,
        ]
        for value, key, headers, stamp in made
    ]


@pytest.mark.slow
def test_a_broker_serves_an_exported_topic_and_appends_to_it(broker: Broker, tmp_path: Path) -> None:
    made = records(2000)
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = store.create_topic("given", 2, compression_type="zstd", segment_bytes=50_000, durability="os")
        for number in (0, 1):
            log = topic.partition(number)
            log._advance(1000 * number)
            for first in range(0, len(made), 100):
                log.append_many(made[first : first + 100])
        topic.partition(0).trim(250)
        wanted = [[seen(record) for record in topic.partition(number)] for number in (0, 1)]
        with broker.running():
            broker.do({"do": "create", "topic": "given", "partitions": 2})
            with pytest.raises(SourceInUse, match="running"):
                interop.export_topic(topic, broker.logs, format="kafka")
        reports = interop.export_topic(topic, broker.logs, format="kafka")
    assert [report.next_offset for report in reports] == [2000, 3000]
    with broker.running():
        zero, one, placed = broker.do(
            {"do": "consume", "topic": "given", "partition": 0},
            {"do": "consume", "topic": "given", "partition": 1},
            {"do": "produce", "topic": "given", "partition": 0, "records": sent(records(3))},
        )
    assert [zero, one] == wanted
    assert placed == [2000, 2001, 2002]
    assert not [each.name for each in broker.logs.iterdir() if each.name.endswith(("-stray", "-delete"))]
    with interop.open(broker.logs / "given-0") as log:
        assert (log.lowest_offset, log.next_offset) == (250, 2003)
        assert [seen(record) for record in log.scan(250, 2000)] == wanted[0]


@pytest.mark.slow
def test_a_brokers_log_is_imported_unchanged(broker: Broker, tmp_path: Path) -> None:
    compact = {"cleanup.policy": "compact", "segment.ms": 500, "min.cleanable.dirty.ratio": 0.01}
    keyed = [(b"%d" % n, b"key %d" % (n % 3), [], 1_700_000_000_000 + 1000 * n) for n in range(6000)]
    large = [(b"x" * 1000, None, [], 1_700_000_000_000 + n) for n in range(1500)]
    names = [("plain", 0), ("plain", 1), ("cleaned", 0), ("cut", 0)]
    with broker.running():
        broker.do(
            {"do": "create", "topic": "plain", "partitions": 2, "settings": {"segment.bytes": 1 << 20}},
            {"do": "create", "topic": "cleaned", "settings": compact},
            {"do": "create", "topic": "paid"},
            {"do": "create", "topic": "cut", "settings": {"segment.bytes": 1 << 20}},
        )
        for turn, codec in enumerate((None, "gzip", "lz4", "zstd")):
            now = keyed[1500 * turn : 1500 * (turn + 1)]  # time goes on, so that segments are closed
            broker.do(
                {"do": "produce", "topic": "plain", "records": sent(records(1500)), "codec": codec},
                {"do": "produce", "topic": "cleaned", "records": sent(now), "codec": codec},
                {"do": "produce", "topic": "cut", "records": sent(large), "codec": codec},
            )
        broker.do(
            {"do": "transactions", "topic": "paid", "values": ["0", "1", "2", "3"], "abort": [1, 3]},
            {"do": "delete", "topic": "cut", "partition": 0, "before": 777},
        )
        wait_for_compaction(broker, "cleaned")
        *told, paid = broker.do(
            *({"do": "consume", "topic": name, "partition": number} for name, number in names),
            {"do": "consume", "topic": "paid", "committed": True},
        )
        with pytest.raises(SourceInUse, match="a Kafka broker is running"):
            interop.open(broker.logs / "plain-0")
    assert [record[2] for record in paid] == ["0", "2"]
    with DirectoryStore.open(tmp_path / "data") as store:
        report = interop.import_log(broker.logs, store)
        assert {"plain", "cleaned", "paid", "cut"} <= set(store.topics())
        assert not [name for name in store.topics() if name.startswith("__")]
        for (name, number), wanted in zip(names, told, strict=True):
            log = store[name].partition(number)
            assert [seen(record) for record in log] == wanted, name
            assert log.verify()
        assert store["cut"].partition(0).lowest_offset == 777
        assert len(store["cleaned"].partition(0)) > len(told[2])
        with pytest.raises(RecordRemoved):
            store["cleaned"].partition(0).read(0)
        assert interop.import_log(broker.logs, store).records == 0
        for name in ("plain", "paid"):
            interop.export_topic(store[name], tmp_path / "again", format="kafka")
    assert report.records > 0
    for path in sorted(tmp_path.glob("again/*/*.log")) + sorted(tmp_path.glob("again/*/*.txnindex")):
        assert path.read_bytes() == (broker.logs / path.parent.name / path.name).read_bytes(), path
    assert (tmp_path / "again/paid-0" / f"{0:020}.txnindex").exists()


@pytest.mark.slow
def test_records_acknowledged_by_a_killed_broker_are_imported(broker: Broker, tmp_path: Path) -> None:
    made = sent(records(1000))
    with broker.running(kill=True):
        _, placed = broker.do(
            {"do": "create", "topic": "killed"}, {"do": "produce", "topic": "killed", "records": made, "codec": "lz4"}
        )
    assert not (broker.logs / ".kafka_cleanshutdown").exists()
    last = broker.logs / "killed-0" / f"{0:020}.log"
    last.write_bytes(last.read_bytes() + last.read_bytes()[:100])  # an append that the kill has cut short
    with DirectoryStore.open(tmp_path / "data") as store:
        report = interop.import_log(broker.logs, store, only="killed")
        found = [seen(record) for record in store["killed"].scan()]
    assert [record[0] for record in found] == sorted(placed) == list(range(1000))
    assert [[value, key, headers, stamp] for _, key, value, headers, stamp in found] == made
    assert [(each.kind, each.size_bytes) for each in report.findings if each.outcome == "cut"] == [
        (Kind.TORN_TAIL, 100)
    ]


def wait_for_compaction(broker: Broker, topic: str) -> None:
    """Until the cleaner has been there: it keeps note of how far it came."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        noted = (broker.logs / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
        if any(line.startswith(f"{topic} 0 ") and int(line.split()[2]) > 1000 for line in noted):
            return
        time.sleep(0.2)
    raise AssertionError("Kafka has not compacted")
