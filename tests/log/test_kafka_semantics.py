"""Kafka's semantics of a partition, and the expectations of Kafka's own tools on its files.

| Kafka | here |
|---|---|
| log start offset (earliest, -2) | `lowest_offset` |
| log end offset (latest, -1) | `next_offset` |
| ListOffsets by timestamp | `offset_at`; the end instead of -1 if no record is that late |
| Fetch at the end | empty, not an error |
| Fetch outside | `OffsetOutOfRange` (OFFSET_OUT_OF_RANGE) with the range |
| DeleteRecords | `trim` |
| message.timestamp.type | `timestamp_type` "create" or "append" |
| segment.bytes, segment.ms, segment.index.bytes, index.interval.bytes | the fields of `LogConfig` |
| retention.ms: the largest timestamp of a segment decides | the same |
"""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest

from sawlog import Log, Producer
from sawlog.batch.build import encode
from sawlog.errors import OffsetOutOfRange, OutOfOrderSequence

from .places import INDEX, TIME_INDEX, Place, fill, named, values


def consume(log: Log, start: int, max_bytes: int) -> list[bytes | None]:
    """Read as a Kafka client does: parse the returned batches, drop records before `start`, continue after the last
    one."""
    from aiokafka.record.memory_records import MemoryRecords

    seen: list[bytes | None] = []
    position = start
    while True:
        raw = log.fetch(position, max_bytes).raw
        if not raw:
            return seen
        reader = MemoryRecords(raw)
        while reader.has_next():
            for record in reader.next_batch():
                if record.offset >= position:
                    seen.append(record.value)
                    position = record.offset + 1


@pytest.mark.parametrize("max_bytes", [1, 200, 10**6])
def test_kafka_client_reads_everything_from_any_offset(place: Place, max_bytes: int) -> None:
    log = place.open(segment_bytes=1000, initial_offset=3)
    for i in range(12):
        log.append_many([b"%d-%d" % (i, j) for j in range(1 + i % 4)])
    expected = values(log)
    for start in range(3, log.next_offset + 1):
        assert consume(log, start, max_bytes) == expected[start - 3 :]


def test_earliest_latest_and_by_timestamp(place: Place) -> None:
    log = place.open(initial_offset=10)
    assert (log.lowest_offset, log.next_offset) == (10, 10)
    for stamp in (100, 300, 200):
        log.append(b"x", timestamp=stamp)
    log.trim(11)
    assert (log.lowest_offset, log.next_offset) == (11, 13)
    assert [log.offset_at(stamp) for stamp in (0, 150, 200, 250, 301)] == [11, 11, 11, 11, 13]


def test_fetch_at_the_end_is_empty_and_outside_an_error(place: Place) -> None:
    log = place.open(initial_offset=10)
    assert log.fetch(10).raw == b""
    fill(log, 3)
    assert log.fetch(13).raw == b""
    for outside in (9, 14, -1):
        with pytest.raises(OffsetOutOfRange):
            log.fetch(outside)


def test_broker_writes_only_the_fields_outside_the_crc(place: Place) -> None:
    """Base offset and leader epoch; the producer's batch is otherwise stored byte for byte."""
    log = place.open()
    fill(log, 3)
    sent = bytearray(encode([b"a", b"b"], compression="lz4", producer=Producer(9, 1, 5)))
    sent[12:16] = struct.pack(">i", 77)
    log.append_batches(sent)
    stored = log.fetch(3).raw
    assert stored[:8] == struct.pack(">q", 3)
    assert stored[8:12] == sent[8:12]
    assert stored[16:] == sent[16:]


def test_retry_gets_the_offset_of_the_first_attempt(place: Place) -> None:
    """DUPLICATE_SEQUENCE_NUMBER is not an error to a Kafka producer; a gap is OUT_OF_ORDER_SEQUENCE_NUMBER."""
    log = place.open()
    batch = encode([b"a", b"b"], producer=Producer(9, 0, 0))
    assert log.append_batches(batch) == log.append_batches(batch) == range(2)
    with pytest.raises(OutOfOrderSequence):
        log.append_batches(encode([b"c"], producer=Producer(9, 0, 3)))


def test_compacted_offsets_are_holes_not_damage(place: Place) -> None:
    """A compacted batch keeps its last offset; a consumer that asks for a removed record gets the next one."""
    from pathlib import Path

    raw = (Path(__file__).resolve().parent.parent / "golden" / "compacted.bin").read_bytes()
    log = place.open()
    log.append(b"before")
    placed = log.append_batches(raw)
    log.append(b"after")
    kept = [record.offset for record in log.scan(placed.start, placed.stop)]
    removed = sorted(set(placed) - set(kept))
    assert removed
    for offset in removed:
        with pytest.raises(OffsetOutOfRange):
            log.read(offset)
        following = next(log.scan(offset))
        assert following.offset > offset
    assert log.verify()


# --- files


def test_names_are_kafkas(place: Place) -> None:
    log = place.open(initial_offset=368769)
    fill(log, 2)
    log.seal()
    log.append(b"x")
    log.close()
    assert [name for name in place.names() if name[0] == "0"] == [
        f"{base:020d}.{suffix}" for base in (368769, 368771) for suffix in ("index", "log", "timeindex")
    ]


def test_offset_index_is_kafkas(place: Place) -> None:
    """[last offset of a batch - base u32][position of that batch u32]; one more than the interval apart; ascending."""
    log = place.open(initial_offset=100, index_interval_bytes=300)
    for i in range(40):
        log.append_many([b"x" * 20] * (1 + i % 3))
    log.seal()
    data = place.files()[named(100, INDEX)]
    entries = list(struct.iter_unpack(">II", data))
    batches = {batch.position: batch for batch in place.batches(100)}
    assert len(entries) > 5
    for relative, position in entries:
        assert batches[position].last_offset == 100 + relative
    positions = [0] + [position for _, position in entries]
    assert all(300 < b - a <= 300 + 2 * 200 for a, b in pairwise(positions))


@pytest.mark.parametrize("at_once", [False, True])
def test_batch_is_indexed_only_when_more_than_the_interval_has_passed(place: Place, at_once: bool) -> None:
    """Exactly the interval is not more than it."""
    batch = encode([(b"x" * 20, None, (), 1000)])
    log = place.open(index_interval_bytes=3 * len(batch))
    if at_once:
        log.append_batches(batch * 20)
    else:
        for _ in range(20):
            log.append(b"x" * 20, timestamp=1000)
    log.seal()
    entries = list(struct.iter_unpack(">II", place.files()[named(0, INDEX)]))
    assert entries == [(i, i * len(batch)) for i in (4, 8, 12, 16)]


def test_time_index_is_kafkas(place: Place) -> None:
    """[largest timestamp so far i64][last offset of the batch that has it - base u32]; the last is the segment's."""
    log = place.open(initial_offset=100, index_interval_bytes=200)
    stamps = [1000, 1005, 1003, 1010, 1010, 1007, 1020, 1015, 1030, 1001, 1002, 1040, 1039]
    for stamp in stamps:
        log.append_many([(b"x" * 50, None, (), stamp), (b"y", None, (), stamp - 1)])
    log.seal()
    entries = list(struct.iter_unpack(">qI", place.files()[named(100, TIME_INDEX)]))
    batches = place.batches(100)
    assert entries[-1] == (1040, batches[11].last_offset - 100)
    assert [time for time, _ in entries] == sorted({time for time, _ in entries})
    for time, relative in entries:
        (batch,) = [batch for batch in batches if batch.last_offset == 100 + relative]
        assert batch.max_timestamp == time
        assert all(other.max_timestamp <= time for other in batches if other.last_offset <= batch.last_offset)


def test_directory_written_by_kafka_opens(place: Place) -> None:
    """Segments, indexes padded with zeros as Kafka preallocates them, and files that only Kafka knows."""
    log = place.open()
    expected = fill(log, 10)
    log.seal()
    expected += fill(log, 5, start=10)
    log.close()
    for name in ("checkpoint", "producers"):
        place.remove(name)
    for base in (0, 10):
        place.extend(named(base, INDEX), bytes(1024))
        place.extend(named(base, TIME_INDEX), bytes(1200))
    place.write("leader-epoch-checkpoint", b"0\n1\n0 0\n")
    place.write("partition.metadata", b"version: 0\ntopic_id: abc\n")
    place.write(named(10, ".snapshot"), b"\0\1")
    log = place.open()
    assert bool(log.recovery)
    assert values(log) == expected
    assert log.append(b"next") == 15
    assert {"leader-epoch-checkpoint", "partition.metadata", named(10, ".snapshot")} <= set(place.names())
