"""Transactions of Kafka producers in one log: committed and aborted records, and the readers that wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log, LogConfig, Producer
from sawlog.batch.header import scan
from sawlog.errors import (
    CorruptFile,
    InvalidConfig,
    InvalidRecord,
    NotYetVisible,
    OffsetOutOfRange,
    ProducerFenced,
    ProducerInTransaction,
    RecordRemoved,
)
from sawlog.log import slices
from sawlog.log.files import PRODUCERS
from sawlog.log.index import Lookup
from sawlog.log.producers import ProducersFile
from sawlog.log.segment import Segment
from sawlog.log.transactions import ENTRY, AbortedTransaction, TransactionIndex, Transactions
from sawlog.storage.checksummed import LINE

from ..batch.clients import kafka_python
from .places import FilePlace, MemoryPlace, Place, eventually, named, values
from .transactional import T, batch, both, fetched, send


def txn_index(place: Place, base: int) -> bytes | None:
    return place.files().get(named(base, ".txnindex"))


# --- what readers see


def test_an_open_transaction_holds_back_only_committed_readers(place: Place) -> None:
    log = place.open()
    log.append(b"before")
    send(log, [b"one", b"two"], 7)
    log.append(b"after")
    assert both(log) == ([b"before"], [b"before", b"one", b"two", b"after"])
    assert (log.last_stable_offset, log.visible_offset, log.next_offset) == (1, 4, 4)
    assert log.append_marker(7, 0, commit=True) == 4
    assert both(log)[0] == both(log)[1] == [b"before", b"one", b"two", b"after"]
    assert log.last_stable_offset == log.visible_offset == 5


def test_no_reader_of_committed_records_sees_an_aborted_transaction(place: Place) -> None:
    log = place.open()
    send(log, [b"one", b"two"], 7)
    log.append(b"between")
    send(log, [b"three"], 7)
    log.append_marker(7, 0, commit=False)
    assert both(log) == ([b"between"], [b"one", b"two", b"between", b"three"])
    assert [batch.to_pydict()["value"] for batch in log.scan_arrow()] == [[b"between"]]
    assert values(fetched(log, 1)) == [b"between"]


def test_transactions_of_several_producers_overlap(place: Place) -> None:
    log = place.open()
    send(log, [b"a1"], 1)
    send(log, [b"b1"], 2)
    send(log, [b"a2"], 1)
    log.append_marker(1, 0, commit=False)
    assert log.last_stable_offset == 1
    send(log, [b"a3"], 1)
    log.append_marker(2, 0, commit=True)
    assert log.last_stable_offset == 4
    log.append_marker(1, 0, commit=True)
    assert both(log)[0] == [b"b1", b"a3"]
    assert log.fetch(0).aborted == ((1, 0),)
    assert log.fetch(4).aborted == ()


def test_no_reader_gets_a_marker(place: Place) -> None:
    log = place.open()
    send(log, [b"one"], 7)
    marker = log.append_marker(7, 0, commit=True)
    assert both(log) == ([b"one"], [b"one"])
    for isolation in ("committed", "uncommitted"):
        with pytest.raises(RecordRemoved):
            log.read(marker, isolation=isolation)  # type: ignore[arg-type]
    assert log.verify().records == 1
    assert log.offset_at(T + 1) == log.next_offset


def test_single_reads_know_what_is_committed(place: Place) -> None:
    log = place.open()
    send(log, [b"gone"], 7)
    log.append_marker(7, 0, commit=False)
    log.append(b"there")
    send(log, [b"open"], 7)
    with pytest.raises(RecordRemoved) as raised:
        log.read(0)
    assert raised.value.following == 2
    assert log.read(0, isolation="uncommitted").value == b"gone"
    assert log.read(2).value == log[-1].value == b"there"
    with pytest.raises(NotYetVisible, match=r'open transaction from offset 3 on.*isolation="uncommitted"') as beyond:
        log.read(3)
    assert (beyond.value.next_offset, beyond.value.in_transaction) == (3, True)
    assert log.read(3, isolation="uncommitted").value == b"open"
    assert values(log[0:9]) == [b"there"]


def test_a_reader_that_starts_behind_an_open_transaction_waits_for_it(place: Place) -> None:
    log = place.open()
    send(log, [b"one"], 7)
    log.append(b"two")
    assert list(log.scan(1)) == []
    page = log.fetch(1)
    assert (page.raw, page.next_offset, page.last_stable_offset) == (b"", 1, 0)
    page = log.fetch(1, isolation="uncommitted")
    assert (page.next_offset, page.last_stable_offset, page.aborted) == (2, 0, ())
    log.append_marker(7, 0, commit=False)
    assert values(log.scan(1)) == [b"two"]


@pytest.mark.parametrize("read", [lambda log: log.scan(isolation="all"), lambda log: log.fetch(0, isolation=None)])
def test_another_isolation_is_refused(place: Place, read: Callable[[Log], Any]) -> None:
    with pytest.raises(InvalidConfig, match="isolation"):
        read(place.open())


def test_pages_of_records_do_not_end_because_of_aborted_ones(place: Place) -> None:
    log = place.open()
    for _ in range(20):
        send(log, [b"x" * 100], 7)
    log.append_marker(7, 0, commit=False)
    log.append(b"there")
    assert values(log.scan(0, None, 50)) == [b"there"]


def test_a_batch_without_a_producer_is_in_no_transaction(place: Place) -> None:
    log = place.open()
    send(log, [b"one"], -1, epoch=-1)
    assert both(log)[0] == [b"one"]


# --- who waits


def test_a_follower_waits_at_the_last_stable_offset_and_is_woken(place: Place) -> None:
    log = place.open()
    log.append(b"first")
    send(log, [b"mine"], 7)
    found: list[bytes | None] = []
    following = threading.Thread(target=lambda: found.extend(r.value for r in log.follow(0, timeout=60.0)))
    following.start()
    assert eventually(lambda: found == [b"first"])
    log.append(b"last")
    log.append_marker(7, 0, commit=True)
    assert eventually(lambda: found == [b"first", b"mine", b"last"])
    log.close()
    following.join()


def test_a_fetch_waits_for_bytes_that_are_committed(place: Place) -> None:
    log = place.open()
    send(log, [b"mine"], 7)
    assert log.fetch(0, min_bytes=1, timeout=0.01).raw == b""
    ending = threading.Timer(0.05, lambda: log.append_marker(7, 0, commit=True))
    ending.start()
    assert log.fetch(0, min_bytes=1, timeout=60.0).next_offset == 2
    ending.join()


def test_a_marker_counts_when_it_is_visible(place: Place) -> None:
    """Until then a power cut may lose it, and the transaction be aborted after all."""
    log = place.open(LogConfig(durability="always"))
    send(log, [b"one"], 7)
    send(log, [b"two"], 8)
    log.append_marker(7, 0, commit=True, wait=False)
    log.append_marker(8, 0, commit=False, wait=False)
    assert (log.visible_offset, log.last_stable_offset, log.open_transactions) == (2, 0, ())
    assert both(log)[0] == []
    log.sync()
    assert (log.visible_offset, log.last_stable_offset) == (4, 4)
    assert both(log)[0] == [b"one"]


# --- producers


def test_a_marker_is_what_kafkas_clients_read(place: Place) -> None:
    log = place.open()
    for commit in (True, False):
        at = log.append_marker(2**40, 3, commit=commit, coordinator_epoch=5)
        raw = log.fetch(at).raw
        (header,) = scan(raw)
        assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
        assert (header.producer_id, header.producer_epoch) == (2**40, 3)
        (record,) = kafka_python.DefaultRecordBatch(raw)
        assert (record.version, record.commit, record.abort) == (0, commit, not commit)
        assert raw.endswith(bytes.fromhex("0c 0000 00000005 00"))  # the value: version and the coordinator's epoch


def test_a_marker_fences_older_epochs(place: Place) -> None:
    log = place.open()
    send(log, [b"one"], 7, sequence=0)
    log.append_marker(7, 1, commit=False, coordinator_epoch=4)
    with pytest.raises(ProducerFenced):
        send(log, [b"two"], 7, sequence=1)
    with pytest.raises(ProducerFenced):
        log.append_marker(7, 0, commit=True)
    send(log, [b"three"], 7, epoch=1, sequence=0)
    (known,) = log._producer_states
    assert (known.epoch, known.last_sequence, known.coordinator_epoch, known.transaction_offset) == (1, 0, 4, 2)


@pytest.mark.parametrize("killed", [False, True])
def test_the_fence_survives_a_restart(place: Place, killed: bool) -> None:
    log = place.open()
    log.append_marker(7, 3, commit=True)
    if killed:
        place = place.copy()
    else:
        log.close()
    log = place.open()
    with pytest.raises(ProducerFenced):
        send(log, [b"late"], 7, epoch=2, sequence=5)


def test_a_producer_writes_nothing_outside_its_open_transaction(place: Place) -> None:
    log = place.open()
    send(log, [b"one"], 7, sequence=0)
    with pytest.raises(ProducerInTransaction):
        log.append_many([b"two"], producer=Producer(7, 0, 1))
    log.append_marker(7, 0, commit=True)
    log.append_many([b"two"], producer=Producer(7, 0, 1))


def test_open_transactions_are_listed_in_the_order_in_which_they_began(place: Place) -> None:
    log = place.open()
    log.append_batches(batch([b"b", b"b"], 9, epoch=2, timestamp=T + 5))
    log.append_batches(batch([b"a"], 3))
    log.append_batches(batch([b"b"], 9, epoch=2))
    assert log.open_transactions == ((9, 2, 0, 3, T + 5), (3, 0, 2, 2, T))
    assert place.open(mode="r").open_transactions == log.open_transactions
    assert [each.producer_id for each in place.open(mode="r")._producer_states] == [3, 9]


def test_a_batch_that_is_sent_again_begins_no_transaction(place: Place) -> None:
    log = place.open()
    send(log, [b"one"], 7, sequence=0)
    log.append_marker(7, 0, commit=True)
    assert send(log, [b"one"], 7, sequence=0) == range(1)
    assert log.open_transactions == ()


@pytest.mark.parametrize(("producer", "epoch", "coordinator"), [(-1, 0, 0), (1, -1, 0), (1, 2**15, 0), (1, 0, -1)])
def test_a_marker_that_cannot_be_is_refused(place: Place, producer: int, epoch: int, coordinator: int) -> None:
    log = place.open()
    with pytest.raises(InvalidRecord):
        log.append_marker(producer, epoch, commit=True, coordinator_epoch=coordinator)
    assert log.next_offset == 0


# --- the index


def test_the_index_has_kafkas_entries_and_one_that_proves_it(place: Place) -> None:
    log = place.open(segment_age_ms=None)  # a marker is younger than the records here
    send(log, [b"a"], 7)
    send(log, [b"b"], 8)
    log.append_marker(7, 0, commit=False)
    log.seal()
    data = txn_index(place, 0)
    assert data is not None
    assert len(data) == 2 * 34
    assert data[:34] == bytes.fromhex("0000 0000000000000007 0000000000000000 0000000000000002 0000000000000001")
    assert ENTRY.unpack(data[34:])[:2] == (0, -1)
    assert ENTRY.unpack(data[34:])[3:] == (2, 1)
    assert TransactionIndex.decode(data, 0, 3, log.segments[0].size_bytes) == TransactionIndex(
        (AbortedTransaction(7, 0, 2, 1),), 1
    )
    for wrong in (data[:34], data[34:], data[:33] + b"\2" + data[34:], data[:-1] + b"\0", data + data[:34], b""):
        assert TransactionIndex.decode(wrong, 0, 3, log.segments[0].size_bytes) is None
    assert TransactionIndex.decode(data, 0, 3, log.segments[0].size_bytes + 1) is None
    assert TransactionIndex.decode(data, 0, 4, log.segments[0].size_bytes) is None


def test_a_log_without_transactions_has_no_such_index(place: Place) -> None:
    log = place.open()
    log.append(b"one")
    log.append_many([b"two"], producer=Producer(7, 0, 0))
    log.seal()
    log.close()
    assert not any(name.endswith(".txnindex") for name in place.names())


def test_a_segment_in_the_middle_of_a_transaction_has_one(place: Place) -> None:
    log = place.open(segment_age_ms=None)  # a marker is younger than the records here
    send(log, [b"one"], 7)
    log.seal()
    log.append(b"two")
    log.seal()
    log.append_marker(7, 0, commit=False)
    log.seal()
    log.append(b"three")
    log.seal()
    assert [base for base in place.bases() if txn_index(place, base) is not None] == [0, 1, 2]
    assert both(log) == ([b"two", b"three"], [b"one", b"two", b"three"])


@pytest.mark.parametrize("how", ["missing", "short", "empty", "another segment's", "an entry less"])
def test_a_wrong_index_is_ignored_and_rebuilt(place: Place, how: str) -> None:
    log = place.open(segment_age_ms=None)  # a marker is younger than the records here
    for producer in (1, 2):
        send(log, [b"gone"], producer)
        log.append_marker(producer, 0, commit=False)
        log.append(b"there")
    log.seal()
    send(log, [b"gone"], 3)
    log.append_marker(3, 0, commit=False)
    log.seal()
    log.close()
    right = txn_index(place, 0)
    assert right is not None
    if how == "missing":
        place.remove(named(0, ".txnindex"))
    else:
        wrong = {
            "short": right[:-1],
            "empty": b"",
            "an entry less": right[34:],
            "another segment's": txn_index(place, 6),
        }
        place.write(named(0, ".txnindex"), wrong[how] or b"")
    assert both(place.open(mode="r"))[0] == [b"there", b"there"]
    log = place.open()
    assert both(log)[0] == [b"there", b"there"]
    assert txn_index(place, 0) == right


def test_what_was_truncated_with_the_marker_is_open_again(place: Place) -> None:
    log = place.open()
    log.append(b"first")
    send(log, [b"one"], 7)
    log.seal()
    log.append_marker(7, 0, commit=False)
    log.seal()
    log.append(b"last")
    log.truncate(2)
    assert (log.last_stable_offset, len(log.open_transactions)) == (1, 1)
    assert log.append_marker(7, 0, commit=True) == 2
    log.seal()
    assert both(log)[0] == both(place.open(mode="r"))[0] == [b"first", b"one"]


def test_merged_and_recompressed_segments_know_what_theirs_knew(place: Place) -> None:
    log = place.open(segment_age_ms=None)  # a marker is younger than the records here
    for number in range(4):
        send(log, [b"%d" % number], number)
        log.seal()
        log.append_marker(number, 0, commit=number % 2 == 0)
    log.seal()
    before = [header for header in scan(log.fetch(0).raw) if header.is_control]
    log._merge_segments()
    assert len(log.segments) == 2
    assert both(log)[0] == both(place.open(mode="r"))[0] == [b"0", b"2"]
    log._recompress("gzip")
    assert both(log)[0] == both(place.open(mode="r"))[0] == [b"0", b"2"]
    after = [header for header in scan(log.fetch(0).raw) if header.is_control]
    assert [(each.crc, each.base_offset) for each in after] == [(each.crc, each.base_offset) for each in before]
    log.close()
    assert both(place.open())[0] == [b"0", b"2"]


# --- the files


def test_transactions_are_read_from_the_batches_if_the_producer_file_has_an_unknown_version(place: Place) -> None:
    log = place.open()
    send(log, [b"gone"], 7, sequence=0)
    log.append_marker(7, 0, commit=False)
    log.seal()
    send(log, [b"open"], 8, sequence=0)
    log.close()
    text = LINE.append_to(b"sawlog producers 1 3\nleader epoch 0\n7 0 0 0 0 0 1\n8 0 0 0 2 2 1\n")
    with pytest.raises(CorruptFile):
        ProducersFile.decode(text)
    place.write("producers", text)
    place.remove(named(0, ".txnindex"))
    assert both(place.open(mode="r"))[0] == []
    log = place.open()
    assert (log.last_stable_offset, both(log)[0]) == (2, [])
    assert [each.producer_id for each in log.open_transactions] == [8]
    assert send(log, [b"open"], 8, sequence=0) == range(2, 3)


def test_the_producers_file_says_what_is_open_and_what_was_aborted() -> None:
    known = Transactions(5)
    known.load([], [], 0)
    text = ProducersFile(9, 2, 5, aborted=[AbortedTransaction(7, 5, 6, 7)]).encode()
    assert text.startswith(b"sawlog producers 2 9\nleader epoch 2\nsegment 5\naborted 7 5 6 7\ncrc32c ")
    assert ProducersFile.decode(text).aborted == [AbortedTransaction(7, 5, 6, 7)]


def test_a_log_that_is_released_is_read_on(file_place: FilePlace) -> None:
    file_place.open().close()
    log = file_place.open(mode="a")
    send(log, [b"gone"], 7)
    log.append_marker(7, 0, commit=False)
    send(log, [b"open"], 8)
    log._release()
    assert (log.last_stable_offset, both(log)) == (2, ([], [b"gone", b"open"]))
    log.append_marker(8, 0, commit=True)
    assert both(log)[0] == [b"open"]


@pytest.mark.alternating
def test_a_reader_follows_the_writer_through_rotations(file_place: FilePlace) -> None:
    log = file_place.open(segment_bytes=300)
    reader = file_place.open(mode="r")
    for number in range(30):
        send(log, [b"%d" % number], number % 3)
        if number % 2:
            log.append_marker(number % 3, 0, commit=number % 4 == 1)
        assert reader.last_stable_offset == log.last_stable_offset
        assert both(reader) == both(log)
        assert values(fetched(reader, 200)) == both(log)[0]


# --- slices


@pytest.mark.parametrize("known", [True, False])
def test_slices_leave_out_what_was_aborted(memory_place: MemoryPlace, known: bool) -> None:
    log = memory_place.open(index_interval_bytes=0)
    for number in range(12):
        send(log, [b"%d" % number], number % 2)
        log.append(b"plain %d" % number)
        if number % 3 == 2:
            log.append_marker(number % 2, 0, commit=number % 4 == 1)
        if number % 5 == 4:
            log.seal()
    for producer in (0, 1):
        log.append_marker(producer, 0, commit=False)
    send(log, [b"open"], 1)
    end = log.last_stable_offset
    pieces = slices.plan(log, 0, end, target_bytes=100)
    assert len(pieces) > 5
    assert all(piece.aborted is not None for piece in pieces)
    if not known:
        pieces = [slices.replace(piece, aborted=None) for piece in pieces]

    def read(pieces: list[slices.Slice]) -> list[bytes]:
        columns = ["value"]
        found = (slices.read(memory_place.path, each, log.config, columns=columns, batch_rows=99) for each in pieces)
        return [value for each in found for batch in each for value in batch.column(0).to_pylist()]

    assert read(pieces) == values(log.scan(0, end))
    every = slices.plan(log, 0, log.next_offset, target_bytes=100, isolation="uncommitted")
    assert read(every) == values(log.scan(isolation="uncommitted"))
    with pytest.raises(OffsetOutOfRange):
        slices.plan(log, 0, log.next_offset)


def test_a_reader_elsewhere_looks_again_when_segments_are_truncated_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open transaction makes it read the segments; the first that it opens has changed."""
    with Log.open(tmp_path, LogConfig(segment_bytes=1000, durability="os")) as log:
        log.append(b"before")
        send(log, [b"open"], 7)
        for _ in range(40):
            log.append(bytes(90))
        (tmp_path / PRODUCERS).unlink()  # which would tell it
        with Log.open(tmp_path, mode="r") as reader:
            load, cut = Segment._load, []

            def load_late(segment: Segment) -> Lookup:
                if not cut:
                    cut.append(segment.next_offset - 2)
                    log.truncate(cut[0])
                return load(segment)

            monkeypatch.setattr(Segment, "_load", load_late)
            assert reader.last_stable_offset == 1
            assert cut
            assert reader.visible_offset == cut[0]


def test_a_time_is_never_that_of_a_marker(place: Place) -> None:
    log = place.open()
    send(log, [b"one"], 7)
    marker = log.append_marker(7, 0, commit=True)
    after = log.append(b"after")
    assert log.offset_at(log.read(0).timestamp + 1) == after == marker + 1
    log.append_marker(7, 0, commit=True)
    assert log.offset_at(log.read(after).timestamp + 1) == log.next_offset


@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
def test_a_time_is_never_that_of_an_aborted_record(place: Place, sealed: bool) -> None:
    log = place.open()
    log.append(b"old", timestamp=T - 10)
    log.append_batches(batch([b"aborted", b"as well"], 7, timestamp=T))
    log.append(b"new", timestamp=T)
    log.append_batches(batch([b"committed"], 8, timestamp=T + 5))
    assert log.offset_at(T) == 1  # not decided yet
    log.append_marker(7, 0, commit=False)
    log.append_marker(8, 0, commit=True)
    if sealed:
        log.seal()
    assert [log.offset_at(time) for time in (T - 10, T - 9, T, T + 1, T + 6)] == [0, 3, 3, 4, log.next_offset]
    log.close()
    again = place.open(mode="r")
    assert [again.offset_at(time) for time in (T - 10, T - 9, T, T + 1)] == [0, 3, 3, 4]


@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("left", ["clean", "killed", "no producers file"])
def test_what_a_producer_writes_after_all_of_it_was_trimmed_begins_another_transaction(
    file_place: FilePlace, left: str, sealed: bool
) -> None:
    log = file_place.open()
    send(log, [b"one", b"two"], 7)
    log.append_many([b"a", b"b", b"c"])
    log.trim(3)  # within a segment: its batches stay in the file
    assert log.last_stable_offset == 5
    if sealed:
        log.seal()
    send(log, [b"three"], 7)
    log.append(b"d")
    reader = file_place.open(mode="r")
    assert (log.last_stable_offset, reader.last_stable_offset) == (5, 5)
    assert values(log) == [b"b", b"c"]
    after = file_place.copy() if left == "killed" else file_place
    if left != "killed":
        log.close()
    if left == "no producers file":
        after.remove(PRODUCERS)
    log = after.open()
    assert log.last_stable_offset == 5
    assert values(log) == [b"b", b"c"]
    reader = after.open(mode="r")
    assert reader.last_stable_offset == 5
    log.append_marker(7, 0, commit=False)
    assert values(log) == values(reader) == [b"b", b"c", b"d"]
