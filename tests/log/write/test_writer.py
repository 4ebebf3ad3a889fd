"""The buffered writer: records one by one, batches to the log."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sawlog import Log, LogConfig, Record, Writer
from sawlog.errors import InvalidRecordType, LogClosed, RecordTooLarge, StorageError
from sawlog.storage import MemoryDirectory

from ..places import Place, eventually, fill, values


def test_records_are_in_the_log_after_flush_and_close(place: Place) -> None:
    log = place.open()
    with log.writer() as writer:
        assert isinstance(writer, Writer)
        assert writer.append(b"a", b"k", [("h", b"v")], 5) is None
        writer.append(b"b")
        assert len(log) == 0
        assert writer.flush() == range(2)
        assert writer._last == range(2)
        writer.append(b"c")
    assert values(log) == [b"a", b"b", b"c"]
    record = log.read(0)
    assert (record.key, record.headers, record.timestamp) == (b"k", (("h", b"v"),), 5)


def test_flush_of_nothing_is_an_empty_range(place: Place) -> None:
    with place.open().writer() as writer:
        assert len(writer.flush()) == 0


@pytest.mark.parametrize("batch_bytes", [1, 100, 1000, 100_000])
def test_batches_are_placed_when_they_are_full(place: Place, batch_bytes: int) -> None:
    log = place.open()
    expected = [b"%d" % i * 10 for i in range(300)]
    with log.writer(batch_bytes=batch_bytes) as writer:
        for value in expected:
            writer.append(value)
    assert values(log) == expected
    sizes = [batch.size_bytes for batch in place.batches()]
    assert all(size < batch_bytes + 200 for size in sizes)
    assert len(sizes) == 300 or batch_bytes > 1


@pytest.mark.parametrize("segment_bytes", [150, 200, 300, 1000])
def test_record_that_fits_a_segment_is_never_refused(place: Place, segment_bytes: int) -> None:
    """However little room is left in the open batch."""
    log = place.open(segment_bytes=segment_bytes)
    expected = [b"%03d" % i + b"v" * (i % 80) for i in range(60)]
    with log.writer() as writer:
        for value in expected:
            writer.append(value)
    assert values(log) == expected
    assert all(segment.size_bytes <= segment_bytes for segment in log.segments)


def test_append_many_takes_every_form_of_a_record(place: Place) -> None:
    log = place.open()
    with log.writer() as writer:
        writer.append_many([b"a", (b"b", b"k"), {"value": b"c", "timestamp": 5}, Record(b"d", offset=99), None])
    assert values(log) == [b"a", b"b", b"c", b"d", None]


def test_bad_record_is_refused_at_once_and_the_batch_stays(place: Place) -> None:
    log = place.open(max_record_bytes=100)
    with log.writer() as writer:
        writer.append(b"good")
        with pytest.raises(InvalidRecordType):
            writer.append("text")
        with pytest.raises(RecordTooLarge):
            writer.append(b"x" * 101)
        writer.append(b"also good")
    assert values(log) == [b"good", b"also good"]


def test_leaving_with_an_exception_keeps_what_was_taken(place: Place) -> None:
    log = place.open()

    def fail() -> None:
        with log.writer() as writer:
            writer.append(b"taken")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert values(log) == [b"taken"]


def test_closing_the_log_flushes_its_writers(place: Place) -> None:
    log = place.open()
    writers = [log.writer() for _ in range(3)]
    for i, writer in enumerate(writers):
        writer.append(b"%d" % i)
    log.close()
    log = place.open()
    assert sorted(value or b"" for value in values(log)) == [b"0", b"1", b"2"]
    for writer in writers:
        with pytest.raises(LogClosed):
            writer.append(b"x")
        with pytest.raises(LogClosed):
            writer.flush()
        writer.close()


def test_closed_writer_refuses_more(place: Place) -> None:
    log = place.open()
    writer = log.writer()
    writer.append(b"x")
    writer.close()
    writer.close()
    with pytest.raises(LogClosed):
        writer.append(b"y")
    with pytest.raises(LogClosed):
        writer.append_many([b"y"])
    assert values(log) == [b"x"]
    assert log.append(b"the log goes on") == 1


def test_writers_and_appends_mix(place: Place) -> None:
    log = place.open(segment_bytes=1000)
    first, second = log.writer(), log.writer()
    first.append(b"f0")
    second.append(b"s0")
    assert log.append(b"direct") == 0
    assert second.flush() == range(1, 2)
    first.append(b"f1")
    assert first.flush() == range(2, 4)
    assert values(log) == [b"direct", b"s0", b"f0", b"f1"]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_threads_share_a_writer(place: Place, compression: str) -> None:
    log = place.open(compression=compression, segment_bytes=20_000)
    with log.writer(batch_bytes=500) as writer:

        def work(who: int) -> None:
            for i in range(300):
                writer.append(b"%d-%d" % (who, i))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values(log)
    assert sorted(found) == sorted(b"%d-%d" % (who, i) for who in range(4) for i in range(300))  # type: ignore[type-var]
    for who in range(4):
        assert [value for value in found if value and value.startswith(b"%d-" % who)] == [
            b"%d-%d" % (who, i) for i in range(300)
        ]
    assert log.verify()


def test_batch_is_placed_when_it_has_lingered(place: Place) -> None:
    log = place.open()
    writer = log.writer(linger_ms=1)
    writer.append(b"x")
    assert eventually(lambda: len(log) == 1)
    writer.append(b"y")
    assert eventually(lambda: len(log) == 2)
    writer.close()


def test_without_linger_nothing_is_placed_by_itself(place: Place) -> None:
    log = place.open(checkpoint_interval_ms=1)
    lingering = log.writer(linger_ms=1)
    writer = log.writer()
    writer.append(b"x")
    lingering.append(b"y")
    assert eventually(lambda: len(log) == 1)
    assert values(log) == [b"y"]
    writer.close()


class _Full(MemoryDirectory):
    full = False

    def create(self, name: str) -> Any:
        storage = super().create(name)
        append = storage.append

        def maybe(data: Any) -> int:
            if self.full:
                raise StorageError(28, "no space left")
            return append(data)

        storage.append = maybe  # type: ignore[method-assign]
        return storage


def test_batch_that_could_not_be_placed_is_tried_again() -> None:
    directory = _Full()
    log = Log.open(directory, LogConfig(durability="os"))
    writer = log.writer()
    writer.append(b"a")
    directory.full = True
    for _ in range(3):
        with pytest.raises(StorageError):
            writer.flush()
    writer.append(b"b")
    assert len(log) == 0
    directory.full = False
    writer.flush()
    assert values(log) == [b"a", b"b"]
    writer.append(b"c")
    writer.close()
    assert values(log) == [b"a", b"b", b"c"]


def test_full_batch_that_could_not_be_placed_loses_nothing() -> None:
    directory = _Full()
    log = Log.open(directory, LogConfig(durability="os"))
    writer = log.writer(batch_bytes=200)
    taken: list[bytes] = []
    directory.full = True
    for i in range(20):
        value = b"%02d" % i * 10
        try:
            writer.append(value)
            taken.append(value)
        except StorageError:
            taken.append(value)  # accepted, but the batch that it filled could not be placed
    directory.full = False
    writer.close()
    assert values(log) == taken


def test_writer_of_a_failed_log_says_so(place: Place) -> None:
    log = place.open()
    writer = log.writer()
    writer.append(b"x")
    log._access.appender.durability.fail(RuntimeError("the disk is gone"))  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="the disk is gone"):
        writer.flush()
    assert values(log) == []
    log._access.appender.durability.failure = None  # type: ignore[union-attr]


def test_log_clock_and_compression_hold_for_writers(place: Place) -> None:
    log = place.open(compression="gzip", timestamp_type="append")
    with log.writer() as writer:
        for _ in range(50):
            writer.append(b"the same again and again", timestamp=5)
    assert {(record.timestamp_type, record.timestamp == 5) for record in log} == {(1, False)}
    assert [batch.compression for batch in place.batches()] == [1]


def test_writer_that_is_dropped_does_not_take_its_records_along(place: Place) -> None:
    """As with a file object, buffered records are written when the log is closed."""
    log = place.open()
    fill(log, 1)
    log.writer().append(b"taken")
    import gc

    gc.collect()
    log.close()
    assert values(place.open())[1:] == [b"taken"]
