"""Sixteen guarantees (C1 to C16) that laminarmq, RustLog or GUMLOG breaks."""

from __future__ import annotations

import struct
import threading
import tracemalloc
from datetime import timedelta

import pytest

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.batch.checksum import crc32c
from sawlog.batch.compression import compress
from sawlog.errors import CorruptBatch, OffsetOutOfRange, SawlogError, StreamAborted

from .places import INDEX, TIME_INDEX, FilePlace, Place, fill, named, now_ms, values
from .sampling import some_of, some_or_all


def test_c01_truncate_to_the_lowest_offset_then_append_then_reopen(place: Place) -> None:
    """laminarmq writes a second base marker: one record too many after a restart (L1)."""
    log = place.open(initial_offset=7)
    for round_ in range(3):
        fill(log, 3)
        assert log.truncate(7) == (3 if round_ == 0 else 4)
        assert len(log) == 0
        assert log.append(b"only") == 7
        log.close()
        log = place.open()
        assert (log.lowest_offset, log.next_offset, values(log)) == (7, 8, [b"only"])


def test_c02_truncate_at_a_segment_boundary(place: Place) -> None:
    """laminarmq ends up with two segments of the same base (L2)."""
    log = place.open()
    for start in (0, 5, 10):
        fill(log, 5, start=start)
        log.seal()
    assert place.bases() == [0, 5, 10, 15]
    assert log.truncate(10) == 5
    assert place.bases() == [0, 5, 10]
    assert [(s.base_offset, s.next_offset, s.sealed) for s in log.segments] == [
        (0, 5, True),
        (5, 10, True),
        (10, 10, False),
    ]
    assert log.append(b"new") == 10
    log.close()
    log = place.open()
    assert len(log) == 11
    assert log[-1].value == b"new"
    assert log.verify()


def test_c03_idle_empty_log_can_be_expired_again_and_again(place: Place) -> None:
    """laminarmq unlinks the file that it keeps writing to (L3)."""
    log = place.open()
    assert [log.remove_expired(0) for _ in range(3)] == [0, 0, 0]
    log.append(b"first", timestamp=1)
    assert [log.remove_expired(0) for _ in range(3)] == [1, 0, 0]
    assert log.append(b"second") == 1
    log.close()
    log = place.open()
    assert (log.lowest_offset, values(log)) == (1, [b"second"])


def test_c04_age_of_a_segment_survives_a_restart(place: Place) -> None:
    """In laminarmq a segment is as old as the process."""
    log = place.open()
    log.append(b"old", timestamp=now_ms() - 3_600_000)
    log.seal()
    log.append(b"young")
    log.close()
    log = place.open()
    assert log.remove_expired(timedelta(hours=2)) == 0
    assert log.remove_expired(timedelta(minutes=59)) == 1
    assert values(log) == [b"young"]


@pytest.mark.alternating
@pytest.mark.sampled(3)  # 0.1 s each
@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
@pytest.mark.parametrize("closed", [True, False])
def test_c05_index_torn_missing_or_padded_costs_no_record(place: Place, suffix: str, closed: bool) -> None:
    """GUMLOG loses its place after a crash because its index is padded (G1); laminarmq's is misaligned (L6)."""
    log = place.open(index_interval_bytes=0)
    expected = fill(log, 12, timestamp=1000)
    log.seal()
    expected += fill(log, 6, start=12, timestamp=2000)
    if closed:
        log.close()
    for name in [named(0, suffix), named(12, suffix)]:
        if name not in place.files():
            continue
        whole = place.files()[name]
        every = 1 if place.kind == "memory" else 7
        states = [whole[:size] for size in range(0, len(whole), every)]
        states += [whole + bytes(size) for size in (1, 8, 12, 96, 1000)] + [bytes(len(whole)), b"\xff" * len(whole)]
        for state in [*states, None]:
            damaged = place.copy()
            if state is None:
                damaged.remove(name)
            else:
                damaged.write(name, state)
            again = damaged.open()
            assert values(again) == expected
            assert [again.read(i).value for i in range(18)] == expected
            assert again.offset_at(2000) == 12
            assert again.append(b"next") == 18
            damaged.close()


@pytest.mark.alternating
@some_or_all(60)
def test_c06_log_torn_at_any_byte_keeps_what_precedes(place: Place, most: int | None) -> None:
    """None of the three recovers; RustLog appends after the torn record."""
    log = place.open()
    expected = fill(log, 5)
    ends = [0] + [batch.position + batch.size_bytes for batch in place.batches()]
    for size in some_of(range(ends[-1] + 1), most):
        torn = place.copy(restarted=True)
        torn.remove("checkpoint")
        torn.cut(named(0), size)
        again = torn.open()
        whole = sum(end <= size for end in ends) - 1
        assert values(again) == expected[:whole]
        assert again.append(b"next") == whole
        assert again.verify()
        torn.close()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("most", [16, 17, 20, 24, 25, 35, 100, 1021])
def test_c07_index_limit_that_is_no_multiple_of_an_entry_still_rotates(place: Place, most: int) -> None:
    """GUMLOG's log is stuck forever at record 86 with its default settings (G2)."""
    log = place.open(max_index_bytes=most, index_interval_bytes=0)
    expected = fill(log, most // 8 + 20)
    assert len(log.segments) > 1
    log.close()
    assert all(len(data) <= most for name, data in place.files().items() if name.endswith("index"))
    assert values(place.open()) == expected


def test_c08_failed_stream_leaves_the_same_bytes_and_state_at_every_chunk(place: Place) -> None:
    """In laminarmq and RustLog a failed append leaves orphan bytes (L5, G3)."""
    log = place.open()
    fill(log, 3)
    before = place.files()

    def chunks(good: int):  # type: ignore[no-untyped-def]
        for i in range(good):
            yield b"%d" % i * 100
        raise ConnectionError("the other side hung up")

    for good in range(6):
        with pytest.raises(StreamAborted) as caught:
            log.append_stream(chunks(good))
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert place.files() == before
        assert (log.next_offset, len(log), log.size_bytes) == (3, 3, len(before[named(0)]))
    assert log.append_stream([b"fine"]) == 3


def test_c09_corrupt_record_is_never_skipped(place: Place) -> None:
    """laminarmq's stream skips unreadable records; RustLog stops silently."""
    log = place.open()
    expected = fill(log, 9)
    log.seal()
    log.close()
    place.flip(named(0), place.batches()[4].position + 70)
    log = place.open()
    with pytest.raises(CorruptBatch) as caught:
        log.read(4)
    assert caught.value.next_offset == 5
    scan = log.scan()
    assert values(next(scan) for _ in range(4)) == expected[:4]
    with pytest.raises(CorruptBatch) as caught:
        next(scan)
    assert caught.value.next_offset == 5
    for attempt in (lambda: list(log.scan_arrow()), lambda: log.fetch(4, 10**6), lambda: list(log.follow(timeout=0))):
        with pytest.raises(CorruptBatch):
            attempt()
    assert log.fetch(0, 10**6).next_offset == 4  # up to the damage, and the next fetch meets it
    assert values(log.scan(5)) == expected[5:]
    assert not log.verify()


def test_c10_reopened_log_continues_its_offsets(place: Place) -> None:
    """RustLog starts again at the base."""
    expected: list[bytes] = []
    for round_ in range(5):
        log = place.open()
        assert log.next_offset == len(expected)
        expected += fill(log, 3, start=3 * round_)
        if round_ % 2:
            log.seal()
        log.close()
    assert values(place.open()) == expected


def test_c11_acknowledged_records_are_there_without_a_close(place: Place) -> None:
    """The part that needs no killed process and no power cut: acknowledged records are in the files."""
    log = place.open(LogConfig(durability="always"))
    expected = []
    for i in range(5):
        expected.append(b"%d" % i)
        log.append(expected[-1])
        assert log.durable_offset == i + 1
        left_behind = place.copy()
        again = left_behind.open()
        assert values(again) == expected
        assert not again.recovery.clean
        left_behind.close()


def test_c12_consumer_below_the_lowest_offset_is_told_the_range(place: Place) -> None:
    """RustLog returns nothing and the same offset, so its consumer spins forever."""
    log = place.open()
    fill(log, 10)
    log.trim(6)
    for attempt in (
        lambda: log.read(5),
        lambda: log.scan(5),
        lambda: log.scan_arrow(5),
        lambda: log.fetch(5, 100),
        lambda: log.follow(5, timeout=0),
    ):
        with pytest.raises(OffsetOutOfRange) as caught:
            attempt()
        assert (caught.value.requested, caught.value.lowest, caught.value.next) == (5, 6, 10)


def test_c13_what_is_appended_is_read_at_once(place: Place) -> None:
    """laminarmq's and GUMLOG's buffers hide it until they are flushed."""
    log = place.open()
    beside = None
    for i in range(50):
        log.append(b"%d" % i)
        assert log.read(i).value == b"%d" % i
        assert log[-1].offset == i
        if beside is None:
            beside = place.open(mode="r")
        assert beside.read(i).value == b"%d" % i
        assert beside.next_offset == i + 1


def test_c14_stray_files_are_left_alone(place: Place) -> None:
    """GUMLOG pairs files by counting (G7); laminarmq looks for .index files only (L9)."""
    log = place.open()
    expected = fill(log, 3)
    log.close()
    strangers = {
        "notes.txt": b"mine",
        "5.log": b"not ours",
        "00000000000000000003.log.bak": b"backup",
        "0000000000000000003.log": b"nineteen digits",
        "x00000000000000000003.log": b"",
        ".hidden": b"",
        "00000000000000000003.LOG": b"loud",
        "00000000000000000003.store": b"laminarmq's",
        "checkpoint.old": b"",
        "LOCK.bak": b"",
    }
    for name, data in strangers.items():
        place.write(name, data)
    if isinstance(place, FilePlace):
        (place.path / "directory").mkdir()
        (place.path / "directory" / "file").write_bytes(b"")
    log = place.open()
    assert values(log) == expected
    assert log.append(b"next") == 3
    log.close()
    assert {name: data for name, data in place.files().items() if name in strangers} == strangers
    log = place.open()
    log.remove()
    assert place.files() == strangers


def hostile(count: int, last_delta: int, codec: int, body: bytes) -> bytes:
    """Return a batch with a matching CRC and a record count that its bytes cannot hold."""
    packed = compress(codec, body) if codec else body
    assert packed is not None
    tail = struct.pack(">hiqqqhii", codec, last_delta, 0, 0, -1, -1, -1, count) + bytes(packed)
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc32c(tail)) + tail


@pytest.mark.parametrize("codec", [0, 1, 4], ids=["none", "gzip", "zstd"])
@pytest.mark.parametrize("count", [2**31 - 1, 2**24])
def test_c15_hostile_count_is_refused_without_allocating(place: Place, codec: int, count: int) -> None:
    """RustLog reserves memory for as many records as a frame claims."""
    batch = hostile(count, 2**31 - 2, codec, bytes(2000))
    log = place.open()
    log.append(b"good")
    tracemalloc.start()
    try:
        before = place.files()
        with pytest.raises(SawlogError):
            log.append_batches(batch)
        assert place.files() == before
        assert log.append(b"also good") == 1
        log.close()
        planted = struct.pack(">q", 2) + batch[8:]
        place.extend(named(0), planted)
        place.remove("checkpoint")
        log = place.open()
        attempts = [lambda: log.read(2), lambda: log.append_batches(batch)]
        if codec:  # only a compressed batch can have that many; the others are detected by their headers and cut off
            attempts += [lambda: list(log.scan()), lambda: list(log.scan_arrow())]
        for attempt in attempts:
            with pytest.raises(SawlogError):
                attempt()
        assert values(log.scan(end=2)) == [b"good", b"also good"]
        assert log.verify().ok == (codec == 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


# --- C16: the log changes under its readers


def long_log(place: Place, segments: int = 3, each: int = 1500, **settings: object) -> Log:
    """Return a log whose segments have more batches than a scan reads in one step."""
    log = place.open(**settings)
    with_numbers = [encode([(b"%d" % i, None, (), 1000)]) for i in range(segments * each)]
    for i in range(segments):
        log.append_batches(b"".join(with_numbers[i * each : (i + 1) * each]))
        log.seal()
    return log


def numbers(records) -> list[int]:  # type: ignore[no-untyped-def]
    return [int(record.value) for record in records]


def test_c16_scan_goes_on_when_its_segment_is_sealed(place: Place) -> None:
    log = place.open()
    fill(log, 2500, size=0)
    scan = log.scan()
    assert next(scan).offset == 0
    log.seal()
    fill(log, 10, start=2500)
    assert [record.offset for record in scan] == list(range(1, 2500))


def test_c16_scans_go_on_when_their_segments_are_unmapped(place: Place) -> None:
    log = long_log(place, max_mapped_segments=1)
    scans = [log.scan(start, start + 1500) for start in (0, 1500, 3000)]
    seen: list[list[int]] = [[], [], []]
    for _ in range(1500):
        for i, scan in enumerate(scans):
            seen[i].append(int(next(scan).value or b""))
    assert seen == [list(range(start, start + 1500)) for start in (0, 1500, 3000)]


@pytest.mark.parametrize("kept", [0, 1, 128])
def test_c16_scan_of_what_expires_goes_on_or_says_so(place: Place, kept: int) -> None:
    log = long_log(place, max_mapped_segments=kept)
    scan = log.scan()
    seen = numbers(next(scan) for _ in range(10))
    assert log.remove_expired(1000) == 4500
    fill(log, 3)
    with pytest.raises(OffsetOutOfRange) as caught:
        seen.extend(int(record.value or b"") for record in scan)
    assert caught.value.lowest == 4500
    assert seen == list(range(len(seen)))
    assert values(log.scan())[0] is not None


@pytest.mark.sampled(2)  # 0.1 s each
@pytest.mark.parametrize("kept", [0, 1, 128])
def test_c16_scan_of_what_is_truncated_gives_no_wrong_record(place: Place, kept: int) -> None:
    log = long_log(place, max_mapped_segments=kept)
    scan = log.scan()
    seen = numbers(next(scan) for _ in range(10))
    log.truncate(700)
    for _ in range(5000):
        log.append(b"-1", timestamp=1000)
    try:
        for record in scan:
            seen.append(int(record.value or b""))
    except OffsetOutOfRange:
        pass
    old = [number for number in seen if number >= 0]
    assert old == list(range(len(old)))
    assert seen[: len(old)] == old
    assert values(log.scan(0, 701)) == [b"%d" % i for i in range(700)] + [b"-1"]


@pytest.mark.sampled(2)  # 0.1 s each
@pytest.mark.parametrize("kept", [0, 1, None])
def test_c16_readers_in_threads_see_correct_records(place: Place, kept: int | None) -> None:
    """Rotation, expiry and eviction during reads: no record is wrong or missing, and no other error is raised."""
    log = place.open(segment_bytes=2000, max_mapped_segments=kept)
    fill(log, 200, size=0)
    wrong: list[object] = []
    stop = threading.Event()

    def read_at_random(seed: int) -> None:
        at = seed
        while not stop.is_set():
            at = (at * 7919 + 13) % 1_000_003
            low, high = log.lowest_offset, log.visible_offset  # `next_offset` may count an append that just ends
            offset = low + at % (high - low)
            try:
                if log.read(offset).value != b"%d" % offset:
                    wrong.append(("value", offset))
            except OffsetOutOfRange:
                if offset >= log.lowest_offset:
                    wrong.append(("range", offset))
            except Exception as error:
                wrong.append(error)

    def read_in_order() -> None:
        while not stop.is_set():
            following = None
            try:
                for record in log.scan():
                    if record.value != b"%d" % record.offset or record.offset != (following or record.offset):
                        wrong.append(("scan", record))
                    following = record.offset + 1
            except OffsetOutOfRange:
                pass
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=read_at_random, args=(7,)), threading.Thread(target=read_in_order)]
    for thread in threads:
        thread.start()
    try:
        for i in range(200, 1000):
            log.append(b"%d" % i)
            if i % 100 == 0:
                log.trim(i - 150)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
