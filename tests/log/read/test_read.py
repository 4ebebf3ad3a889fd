"""Every way to read: by offset, by slice, in order, as Arrow, as raw batches, and as the log grows."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from sawlog import Log, Record
from sawlog.batch.read import decode
from sawlog.errors import CorruptBatch, InvalidConfig, InvalidRecord, InvalidRecordType, OffsetOutOfRange, ReadOnlyLog

from ..places import FilePlace, Place, fill, named, values

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


def mixed(place: Place, **settings: Any) -> tuple[Log, list[bytes]]:
    """Batches of different sizes, single and streamed records, over several segments, from offset 10 on."""
    log = place.open(initial_offset=10, **settings)
    made: list[bytes] = []
    for i in range(30):
        values_ = [b"%d-%d" % (i, j) * (1 + j % 3) for j in range(1 + i % 5)]
        if i % 7 == 3:
            values_ = values_[:1]
            log.append_stream([values_[0][:2], values_[0][2:]])
        elif len(values_) == 1:
            log.append(values_[0])
        else:
            log.append_many(values_)
        made += values_
        if i % 8 == 7:
            log.seal()
    return log, made


@pytest.fixture(params=COMPRESSIONS)
def compression(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- read and []


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_each_offset_gives_its_record(place: Place, compression: str, interval: int) -> None:
    log, expected = mixed(place, compression=compression, index_interval_bytes=interval)
    for again in range(2):
        found = [log.read(10 + i) for i in range(len(expected))]
        assert values(found) == expected
        assert [record.offset for record in found] == list(range(10, 10 + len(expected)))
        assert list(log) == found
        if not again:
            log.close()
            log = place.open()


def test_large_batches_are_read_record_by_record(place: Place) -> None:
    """Above 4 KiB a checked batch is remembered; above a megabyte it takes more than one step of a scan."""
    log = place.open()
    sizes = (500, 7_000, 150_000, 500)
    for size in sizes:
        log.append_many([bytes([65 + i]) * size for i in range(10)])
    for _ in range(2):
        for offset in (0, 9, 10, 15, 29, 20, 30, 39, 5):
            assert log.read(offset).value == bytes([65 + offset % 10]) * sizes[offset // 10]
    assert [len(record.value or b"") for record in log] == [size for size in sizes for _ in range(10)]


def test_log_is_a_sequence_of_offsets(place: Place) -> None:
    log, expected = mixed(place)
    end = 10 + len(expected)
    assert log[10].value == expected[0]
    assert log[end - 1] == log[-1]
    assert [log[-i].value for i in range(1, len(expected) + 1)] == expected[::-1]
    for outside in (9, end, -len(expected) - 1, 0, -(10**9)):
        with pytest.raises(OffsetOutOfRange):
            log[outside]
        with pytest.raises(IndexError):
            log[outside]


def test_slices_are_lists_of_offsets(place: Place) -> None:
    log, expected = mixed(place)
    end = 10 + len(expected)

    def wanted(start: int, stop: int) -> list[bytes]:
        return [expected[offset - 10] for offset in range(max(start, 10), min(stop, end))]

    assert values(log[:]) == expected
    for start in (0, 5, 10, 11, 30, end - 1, end, end + 5):
        for stop in (0, 5, 10, 11, 31, end - 1, end, end + 5):
            assert values(log[start:stop]) == wanted(start, stop)
        assert values(log[start:]) == wanted(start, end)
        assert values(log[:start]) == wanted(0, start)
    assert values(log[-3:]) == expected[-3:]
    assert values(log[:-3]) == expected[:-3]
    assert values(log[-5:-2]) == expected[-5:-2]
    assert log[-2:-5] == []
    assert values(log[-(10**6) :]) == expected
    assert log[::1] == log[:]
    for step in (2, -1, 0):
        with pytest.raises(InvalidRecordType):
            log[::step]


def test_slices_of_an_empty_log_are_empty(place: Place) -> None:
    log = place.open(initial_offset=5)
    assert log[:] == log[0:10] == log[-1:] == log[5:] == []


# --- scan


@pytest.mark.sampled(3)  # 0.1 s each
def test_scan_gives_exactly_the_range(place: Place, compression: str) -> None:
    log, expected = mixed(place, compression=compression)
    end = 10 + len(expected)
    assert values(log.scan()) == values(log) == expected
    for start in range(10, end + 1):
        assert values(log.scan(start)) == expected[start - 10 :]
        for stop in range(start, end + 3, 4):
            assert values(log.scan(start, stop)) == expected[start - 10 : stop - 10]
    assert values(log.scan(end=12)) == expected[:2]
    assert list(log.scan(30, 20)) == []
    assert list(log.scan(end, end)) == []


@pytest.mark.parametrize("start", [9, 0, -1, 10**9])
def test_scan_outside_the_log_is_refused_at_once(place: Place, start: int) -> None:
    """Not when the first record is asked for."""
    log, expected = mixed(place)
    for attempt in (lambda: log.scan(start), lambda: log.scan_arrow(start), lambda: log.follow(start)):
        with pytest.raises(OffsetOutOfRange) as caught:
            attempt()
        assert (caught.value.requested, caught.value.lowest) == (start, 10)
        assert caught.value.next == 10 + len(expected)


def test_scan_sees_the_log_as_it_was_when_it_began(place: Place) -> None:
    log = place.open()
    expected = fill(log, 5)
    scan = log.scan()
    fill(log, 5, start=5)
    assert values(scan) == expected


def test_scans_are_independent(place: Place) -> None:
    log, expected = mixed(place)
    one, two = log.scan(), log.scan()
    pairs = [(next(one).value, next(two).value) for _ in expected]
    assert pairs == [(value, value) for value in expected]


@pytest.mark.parametrize("max_bytes", [1, 100, 150, 500, 1000, 10**6])
def test_scan_in_pages_of_bytes_gives_everything_once(place: Place, max_bytes: int) -> None:
    log, expected = mixed(place)
    seen: list[Record] = []
    offset = 10
    while offset < log.next_offset:
        page = list(log.scan(offset, max_bytes=max_bytes))
        assert page
        size = log.fetch(offset, max_bytes).size_bytes
        assert size <= max_bytes or log.fetch(offset, 1).size_bytes == size
        seen += page
        offset = page[-1].offset + 1
    assert values(seen) == expected


# --- scan_arrow


@pytest.mark.alternating
@pytest.mark.sampled(15)
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("batch_rows", [1, 7, 10_000])
def test_arrow_has_the_same_records(place: Place, compression: str, views: bool, batch_rows: int) -> None:
    log, expected = mixed(place, compression=compression)
    columns = ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    batches = list(log.scan_arrow(batch_rows=batch_rows, columns=columns, views=views))
    assert all(0 < batch.num_rows <= batch_rows for batch in batches)
    table = pa.Table.from_batches(batches)
    table.validate(full=True)
    assert table.column_names == columns
    assert table["value"].to_pylist() == expected
    assert table["offset"].to_pylist() == list(range(10, 10 + len(expected)))
    assert [stamp.timestamp() * 1000 for stamp in table["timestamp"].to_pylist()] == pytest.approx(
        [record.timestamp for record in log], abs=0.5
    )
    end = 10 + len(expected)
    for start in range(10, end, 9):
        for stop in (start, start + 1, start + 20, end + 10):
            found = [row for batch in log.scan_arrow(start, stop, views=views) for row in batch["value"].to_pylist()]
            assert found == expected[start - 10 : stop - 10]


def test_arrow_refuses_what_it_does_not_know(place: Place) -> None:
    log, _ = mixed(place)
    with pytest.raises(InvalidRecord, match="nonsense"):
        log.scan_arrow(columns=["value", "nonsense"])
    for rows in (0, -1):
        with pytest.raises(InvalidConfig, match="batch_rows"):
            log.scan_arrow(batch_rows=rows)


def test_arrow_of_nothing_is_nothing(place: Place) -> None:
    log = place.open()
    assert list(log.scan_arrow()) == []
    fill(log, 3)
    assert list(log.scan_arrow(2, 2)) == []


def test_arrow_views_outlive_the_segment_they_point_into(place: Place) -> None:
    log = place.open(max_mapped_segments=0)
    expected = fill(log, 100, size=100)
    log.seal()
    batches = list(log.scan_arrow(views=True))
    log.trim(100)
    log.append(b"x" * 100_000)
    log.truncate(100)
    log.close()
    assert [value for batch in batches for value in batch["value"].to_pylist()] == expected


def test_arrow_goes_back_into_a_log(place: Place) -> None:
    log, expected = mixed(place)
    table = pa.Table.from_batches(log.scan_arrow(columns=["key", "value", "timestamp", "headers"]))
    placed = log.append_arrow(table)
    assert values(log.scan(placed.start)) == expected


# --- fetch


def test_fetched_batches_are_the_bytes_of_the_files(place: Place, compression: str) -> None:
    log, expected = mixed(place, compression=compression)
    everything = b"".join(place.files()[named(base)] for base in place.bases())
    found = log.fetch(10, 10**9)
    assert found.raw == everything == b"".join(found.buffers)
    assert (found.size_bytes, found.next_offset) == (len(everything), log.next_offset)
    assert values(decode(found.raw)) == expected


def test_fetch_from_any_offset_in_any_size_follows_the_batches(place: Place) -> None:
    log, expected = mixed(place)
    batches = [batch for base in place.bases() for batch in place.batches(base)]
    for start in range(10, 10 + len(expected)):
        first = next(i for i, batch in enumerate(batches) if batch.last_offset >= start)
        for max_bytes in (1, 90, 200, 500, 10**6):
            count, size = 0, 0
            for batch in batches[first:]:
                if count and size + batch.size_bytes > max_bytes:
                    break
                count, size = count + 1, size + batch.size_bytes
            found = log.fetch(start, max_bytes)
            assert (found.size_bytes, found.next_offset) == (size, batches[first + count - 1].last_offset + 1)


# --- follow


def test_follow_without_patience_gives_what_is_there(place: Place) -> None:
    log, expected = mixed(place)
    assert values(log.follow(timeout=0)) == expected
    assert values(log.follow(20, timeout=0)) == expected[10:]
    assert list(log.follow(log.next_offset, timeout=0)) == []


def test_follow_gives_new_records_as_they_come(place: Place) -> None:
    log = place.open(segment_bytes=1000)
    expected = [b"%d" % i for i in range(300)]
    seen: list[bytes | None] = []

    def consume() -> None:
        for record in log.follow(0):
            seen.append(record.value)
            if len(seen) == len(expected):
                return

    consumer = threading.Thread(target=consume)
    consumer.start()
    for value in expected:
        log.append(value)
    consumer.join(60)
    assert seen == expected


def test_follow_ends_when_the_log_is_closed(place: Place) -> None:
    log = place.open()
    log.append(b"x")
    seen: list[Record] = []
    consumer = threading.Thread(target=lambda: seen.extend(log.follow()))
    consumer.start()
    deadline = time.monotonic() + 60
    while not seen and time.monotonic() < deadline:
        time.sleep(0.001)
    log.close()
    consumer.join(60)
    assert not consumer.is_alive()
    assert values(seen) == [b"x"]


def test_follow_ends_after_its_timeout(place: Place) -> None:
    log = place.open()
    log.append(b"x")
    assert values(log.follow(timeout=0.01)) == [b"x"]


def test_timeout_counts_from_the_last_record(place: Place) -> None:
    log = place.open()
    log.append(b"0")
    following = log.follow(timeout=60)
    for i in range(5):
        assert next(following).value == b"%d" % i
        log.append(b"%d" % (i + 1))


def test_follower_of_a_truncated_log_is_told(place: Place) -> None:
    log = place.open()
    fill(log, 10)
    following = log.follow()
    for _ in range(10):
        next(following)
    log.truncate(5)
    with pytest.raises(OffsetOutOfRange) as caught:
        next(following)
    assert (caught.value.requested, caught.value.next) == (10, 5)


def test_follower_of_a_trimmed_log_is_told(place: Place) -> None:
    log = place.open()
    fill(log, 10)
    following = log.follow(3)
    log.trim(10)
    with pytest.raises(OffsetOutOfRange) as caught:
        next(following)
    assert (caught.value.requested, caught.value.lowest) == (3, 10)


# --- damage


@pytest.mark.parametrize("position", [0, 7, 8, 11, 16, 17, 23, 57, 65])
@pytest.mark.parametrize("sealed", [False, True])
def test_everything_around_a_damaged_batch_can_be_read(place: Place, position: int, sealed: bool) -> None:
    """Wherever in the batch the damage is: in its place, its length, its magic, its numbers or its records."""
    log = place.open()
    expected = fill(log, 12)
    if sealed:
        log.seal()
        log.append(b"behind")
    log.close()
    batch = place.batches()[5]
    place.flip(named(0), batch.position + position, 0x41)
    log = place.open()
    with pytest.raises(CorruptBatch) as caught:
        list(log.scan())
    error = caught.value
    assert (error.position, error.next_offset) == (batch.position, 6)
    assert error.path is not None
    assert error.path.endswith(named(0))
    with pytest.raises(CorruptBatch):
        log.read(5)
    assert [log.read(i).value for i in range(12) if i != 5] == expected[:5] + expected[6:]
    assert values(log.scan(end=5)) == expected[:5]
    assert values(log.scan(6, 12)) == expected[6:]
    assert values(decode(log.fetch(error.next_offset or 0, 10**6).raw))[:6] == expected[6:]
    arrow = [value for batch in log.scan_arrow(6, 12) for value in batch["value"].to_pylist()]
    assert arrow == expected[6:]


def test_reader_that_continues_after_each_damage_gets_all_other_records(place: Place) -> None:
    log = place.open()
    expected = fill(log, 40)
    log.seal()
    log.close()
    batches = place.batches()
    bad = {3, 4, 10, 25, 39}
    for i in bad:
        place.flip(named(0), batches[i].position + (16 if i % 2 else 63))
    log = place.open()
    seen: list[bytes | None] = []
    offset, rounds = 0, 0
    while offset < 40:
        rounds += 1
        assert rounds < 20
        try:
            for record in log.scan(offset):
                seen.append(record.value)
                offset = record.offset + 1
        except CorruptBatch as error:
            assert error.next_offset is not None
            assert error.next_offset > offset
            offset = error.next_offset
    assert seen == [value for i, value in enumerate(expected) if i not in bad]


# --- reading beside the writer


def test_reader_sees_what_the_writer_writes(place: Place) -> None:
    log = place.open(segment_bytes=600)
    log.append(b"0")
    beside = place.open(mode="r")
    for i in range(1, 60):
        log.append(b"%d" % i)
        assert beside.next_offset == i + 1
        assert beside.read(i).value == b"%d" % i
        assert len(beside) == i + 1
    assert values(beside) == values(log)
    assert beside.size_bytes == log.size_bytes
    assert [(s.base_offset, s.next_offset) for s in beside.segments] == [
        (s.base_offset, s.next_offset) for s in log.segments
    ]
    assert beside.verify()


def test_reader_follows_the_writer_over_segments_and_trims(place: Place) -> None:
    log = place.open(segment_bytes=600)
    log.append(b"0")
    beside = place.open(mode="r")
    following = beside.follow(0, timeout=60)
    for i in range(50):
        assert next(following).value == b"%d" % i
        log.append(b"%d" % (i + 1))
        if i % 10 == 5:
            log.trim(i)
    assert beside.lowest_offset == log.lowest_offset == 45


def test_reader_notices_truncation(place: Place) -> None:
    log = place.open(segment_bytes=600)
    fill(log, 30)
    beside = place.open(mode="r")
    assert len(beside) == 30
    log.truncate(12)
    assert beside.next_offset == 12
    log.append(b"other")
    assert beside.read(12).value == b"other"
    assert values(beside.scan()) == values(log.scan())


def test_reader_writes_nothing_and_locks_nothing(place: Place) -> None:
    log = place.open()
    fill(log, 5)
    log.close()
    before = place.files()
    beside = place.open(mode="r")
    for call in (
        lambda: beside.append(b"x"),
        lambda: beside.append_many([b"x"]),
        lambda: beside.append_batches(b""),
        lambda: beside.append_stream([b"x"]),
        lambda: beside.append_arrow(pa.table({"value": [b"x"]})),
        lambda: beside.writer(),
        lambda: beside.truncate(0),
        lambda: beside.trim(0),
        lambda: beside.remove_expired(0),
        lambda: beside.apply_retention(),
        lambda: beside.sync(),
        lambda: beside.seal(),
        lambda: beside.remove(),
    ):
        with pytest.raises(ReadOnlyLog):
            call()
    assert not beside._is_writable
    assert beside.durable_offset <= beside.written_offset <= beside.next_offset
    log = place.open()
    log.close()
    beside.close()
    assert place.files() == before


def test_reader_stops_at_the_first_batch_that_is_not_whole(place: Place) -> None:
    log = place.open()
    expected = fill(log, 5)
    torn = place.copy(restarted=True)
    last = place.batches()[-1]
    for size in range(last.position, last.position + last.size_bytes):
        torn.write(named(0), place.files()[named(0)][:size])
        beside = torn.open(mode="r")
        assert values(beside) == expected[:4]
        assert beside.next_offset == 4
        with pytest.raises(OffsetOutOfRange):
            beside.read(4)
        beside.close()


def test_reader_works_without_a_sound_checkpoint(place: Place) -> None:
    log = place.open()
    expected = fill(log, 5)
    log.close()
    for state in (None, b"", b"junk\n"):
        damaged = place.copy()
        if state is None:
            damaged.remove("checkpoint")
        else:
            damaged.write("checkpoint", state)
        beside = damaged.open(mode="r")
        assert values(beside) == expected
        assert beside.lowest_offset <= beside.durable_offset <= beside.next_offset


def test_memory_is_let_go_behind_a_long_scan(file_place: FilePlace) -> None:
    """Records are still correct after their pages were released; benchmarks measure the amount."""
    log = file_place.open()
    log.append_batches(_many_batches(700, 60_000))
    log.seal()
    assert log.segments[0].size_bytes > 33 << 20
    assert sum(len(record.value or b"") for record in log.scan()) == 700 * 60_000
    assert log.read(3).value == b"\3" * 60_000


def _many_batches(count: int, size: int) -> bytes:
    from sawlog.batch.build import encode

    return b"".join(encode([(bytes([i % 256]) * size, None, (), 1000)]) for i in range(count))
