"""`Log.reader`: the bytes of all visible batches as one file, which stays as it is."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sawlog
from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.batch.header import scan

from ..places import Place, fill, named, now_ms, values
from ..transactional import send


def raw(log: Log) -> bytes:
    with log.reader() as reader:
        return reader.read()


def appended_batch_by_batch(log: Log) -> Log:
    """A copy, made as docs/features.md shows."""
    copy = Log.in_memory(LogConfig(durability="os"))
    with log.reader() as reader:
        while header := reader.read(12):
            copy.append_batches(header + reader.read(int.from_bytes(header[8:], "big")))
    return copy


def test_reader_has_the_bytes_of_all_segments(place: Place) -> None:
    log = place.open(segment_bytes=500)
    fill(log, 30)
    assert len(log.segments) > 3
    expected = b"".join(place.files()[named(base)] for base in place.bases())
    assert raw(log) == expected == log.fetch(0, 1 << 30).raw
    log.seal()
    assert raw(log) == expected
    log.close()
    assert raw(place.open(mode="r")) == raw(place.open()) == expected


def test_reader_of_an_empty_log_has_nothing(place: Place) -> None:
    log = place.open()
    assert raw(log) == b""
    fill(log, 3)
    log.trim(3)
    assert raw(log) == b""


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_bytes_of_a_reader_can_be_appended_again(place: Place, compression: str) -> None:
    log = place.open(segment_bytes=2000, compression=compression)
    fill(log, 10, 100, key=b"k", headers=[("h", b"v")])
    log.append_many([b"%d" % i for i in range(50)])
    log.append_stream([b"s" * 700] * 2)
    copy = Log.in_memory()
    assert copy.append_batches(raw(log)) == range(61)
    expected = list(log)
    assert list(copy) == list(appended_batch_by_batch(log)) == expected
    assert raw(copy) == raw(log)
    assert copy.verify()


def test_bytes_of_transactions_and_compacted_segments_can_be_appended_again(place: Place) -> None:
    log = place.open()
    for i in range(20):
        log.append_many([(b"%d" % i, b"key"), (b"%d" % i, b"other %d" % i)])
    log.seal()
    log.compact()
    send(log, [b"committed"], 7)
    log.append_marker(7, 0, commit=True)
    send(log, [b"aborted"], 7)
    log.append_marker(7, 0, commit=False)
    send(log, [b"open"], 7)
    copy = Log.in_memory()
    copy.append_batches(raw(log))
    for isolation in ("committed", "uncommitted"):
        assert list(copy.scan(isolation=isolation)) == list(log.scan(isolation=isolation))
    assert copy.last_stable_offset == log.last_stable_offset == log.next_offset - 1
    assert list(appended_batch_by_batch(log)) == list(log)


def test_reader_ends_at_the_visible_end_at_the_time_of_the_call(place: Place) -> None:
    with Log.open(place.directory(), LogConfig(checkpoint_interval_ms=3_600_000)) as log:
        fill(log, 3)
        expected = log.fetch(0, 1 << 30).raw
        log.append_batches(encode([(b"not durable", None, (), 0)] * 2), wait=False)
        log.append_batches(encode([(b"neither", None, (), 0)]), wait=False)
        reader = log.reader()
        assert raw(log) == expected
        log.sync()
        fill(log, 3)
        log.seal()
        fill(log, 3)
        assert reader.read() == expected
        assert len(scan(raw(log))) == 11


def test_reader_begins_with_the_batch_of_the_lowest_offset(place: Place) -> None:
    log = place.open(segment_bytes=400)
    for i in range(12):
        log.append_many([b"%d" % i, b"second"])
    for lowest in (1, 2, 3, 9, 24):
        log.trim(lowest)
        headers = scan(raw(log))
        assert [header.base_offset for header in headers] == list(range(lowest // 2 * 2, 24, 2))


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.trim(log.next_offset),
        lambda log: log.remove_expired(timedelta(0)),
        lambda log: log.truncate(7),
        lambda log: log.truncate(0),
        lambda log: log.compact(),
        lambda log: log.close(),
        lambda log: log.remove(),
        lambda log: [log.append_many([b"x" * 50] * 5) for _ in range(40)],
    ],
    ids=["trim", "expire", "truncate", "empty", "compact", "close", "remove", "append"],
)
@pytest.mark.parametrize("mode", ["w", "r"])
@pytest.mark.parametrize("mapped", [0, 1, None])
def test_nothing_that_happens_to_the_log_disturbs_a_reader(
    place: Place, change: Callable[[Log], Any], mode: Any, mapped: int | None
) -> None:
    log = place.open(segment_bytes=500, max_mapped_segments=mapped)
    fill(log, 30, key=b"key", timestamp=now_ms() - 1000)
    expected = b"".join(place.files()[named(base)] for base in place.bases())
    reader = (log if mode == "w" else place.open(mode="r")).reader()
    assert reader.read(100) == expected[:100]
    change(log)
    assert reader.read() == expected[100:]
    reader.seek(0)
    assert reader.read() == expected
    reader.close()


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.integers(-1, 3000)),
            st.tuples(st.just("read1"), st.integers(0, 3000)),
            st.tuples(st.just("seek"), st.integers(0, 3000), st.just(0)),
            st.tuples(st.just("seek"), st.integers(-50, 50), st.just(1)),
            st.tuples(st.just("seek"), st.integers(-3000, 50), st.just(2)),
            st.tuples(st.just("readinto"), st.integers(0, 3000)),
        ),
        max_size=12,
    )
)
def test_reader_behaves_like_any_file(moves: list[tuple[Any, ...]]) -> None:
    log = Log.in_memory(LogConfig(segment_bytes=500, durability="os"))
    fill(log, 25)
    ours, model = log.reader(), io.BytesIO(raw(log))
    assert (ours.readable(), ours.seekable(), ours.writable()) == (True, True, False)
    for move, *arguments in moves:
        if move == "seek" and arguments[1] == 1 and model.tell() + arguments[0] < 0:
            continue
        if move == "seek" and arguments[1] == 2:
            arguments[0] = max(arguments[0], -len(model.getvalue()))
        if move == "read1":  # may return less
            found = ours.read1(arguments[0])
            assert found == model.read(len(found))
            continue
        if move == "readinto":
            one, other = bytearray(arguments[0]), bytearray(arguments[0])
            assert (ours.readinto(one), one) == (model.readinto(other), other)
            continue
        assert getattr(ours, move)(*arguments) == getattr(model, move)(*arguments)
        assert ours.tell() == model.tell()


def test_closed_reader_refuses_and_releases_the_files(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    reader = log.reader()
    reader.close()
    reader.close()
    for call in (reader.read, reader.tell, lambda: reader.seek(0)):
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(ValueError, match="negative"):
        log.reader().seek(-1)


def test_partition_of_a_store_can_be_copied_to_a_file(tmp_path: Path) -> None:
    with sawlog.open(tmp_path / "data") as store:
        topic = store.create_topic("orders")
        topic.append_many([b"%d" % i for i in range(100)])
        with topic.partition(0).reader() as reader, (tmp_path / "orders.bin").open("wb") as file:
            shutil.copyfileobj(reader, file)
        again = store.create_topic("again").partition(0)
        again.append_batches((tmp_path / "orders.bin").read_bytes())
        assert values(again.scan()) == [b"%d" % i for i in range(100)]
