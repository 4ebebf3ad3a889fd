"""Idempotent producers: a batch that is sent twice is stored once, also after a restart of any kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from sawlog import Log, Producer
from sawlog.batch.build import encode
from sawlog.batch.header import ATTRIBUTES, TRANSACTIONAL_BIT
from sawlog.errors import InvalidRecord, OutOfOrderSequence, ProducerError, ProducerFenced, SawlogError
from sawlog.log.ingest import rows_of
from sawlog.log.producers import ProducerState
from sawlog.log.transactions import Transactions

from ...faults.interrupts import Interrupter, Stop
from ..places import Place, fill, now_ms, values

LAST_SEQUENCE = 2**31 - 1


def send(log: Log, sequence: int, count: int = 3, *, id: int = 7, epoch: int = 0, **fields: Any) -> range:
    records = [{"value": b"%d" % ((sequence + i) % 2**31), **fields} for i in range(count)]
    return log.append_many(records, producer=Producer(id, epoch, sequence))


def send_raw(log: Log, sequence: int, count: int = 3, *, id: int = 7, epoch: int = 0) -> range:
    records = [b"%d" % ((sequence + i) % 2**31) for i in range(count)]
    return log.append_batches(encode(records, producer=Producer(id, epoch, sequence)))


Send = Callable[..., range]


@pytest.fixture(params=[send, send_raw], ids=["append_many", "append_batches"])
def sending(request: pytest.FixtureRequest) -> Send:
    return request.param  # type: ignore[no-any-return]


def test_repeated_batch_gets_the_offsets_of_the_first(place: Place, sending: Send) -> None:
    log = place.open()
    log.append(b"before")
    assert sending(log, 0) == range(1, 4)
    assert sending(log, 3) == range(4, 7)
    log.append(b"between")
    for _ in range(2):
        assert sending(log, 0) == range(1, 4)
        assert sending(log, 3) == range(4, 7)
    assert sending(log, 6) == range(8, 11)
    assert len(log) == 11


def test_the_last_five_batches_are_remembered(place: Place, sending: Send) -> None:
    """Kafka's producers have at most five batches in flight."""
    log = place.open()
    for i in range(8):
        sending(log, i, 1)
    for i in range(3, 8):
        assert sending(log, i, 1) == range(i, i + 1)
    with pytest.raises(OutOfOrderSequence):
        sending(log, 2, 1)
    assert len(log) == 8


def test_gap_is_refused_and_nothing_is_written(place: Place, sending: Send) -> None:
    log = place.open()
    sending(log, 0)
    before = place.files()
    for sequence in (4, 2, 1, 100, LAST_SEQUENCE):
        with pytest.raises(OutOfOrderSequence):
            sending(log, sequence)
    assert place.files() == before
    assert sending(log, 3) == range(3, 6)


def test_same_start_with_another_length_is_no_duplicate(place: Place, sending: Send) -> None:
    log = place.open()
    sending(log, 0, 3)
    with pytest.raises(OutOfOrderSequence):
        sending(log, 0, 2)
    assert len(log) == 3


def test_unknown_producer_may_start_anywhere(place: Place, sending: Send) -> None:
    log = place.open()
    assert sending(log, 500) == range(3)
    assert sending(log, 503) == range(3, 6)


def test_producers_are_independent(place: Place, sending: Send) -> None:
    log = place.open()
    assert sending(log, 0, id=1) == range(3)
    assert sending(log, 0, id=2) == range(3, 6)
    assert sending(log, 3, id=1) == range(6, 9)
    assert sending(log, 0, id=2) == range(3, 6)


def test_older_epoch_is_fenced(place: Place, sending: Send) -> None:
    log = place.open()
    sending(log, 0, epoch=3)
    for epoch in (0, 1, 2):
        with pytest.raises(ProducerFenced):
            sending(log, 3, epoch=epoch)
        with pytest.raises(ProducerFenced):
            sending(log, 0, epoch=epoch)
    assert len(log) == 3


def test_newer_epoch_starts_at_zero(place: Place, sending: Send) -> None:
    log = place.open()
    sending(log, 0)
    with pytest.raises(OutOfOrderSequence):
        sending(log, 3, epoch=1)
    assert sending(log, 0, epoch=1) == range(3, 6)
    assert sending(log, 0, epoch=1) == range(3, 6)
    assert sending(log, 3, epoch=1) == range(6, 9)
    with pytest.raises(ProducerFenced):
        sending(log, 3, epoch=0)


def test_sequence_starts_again_after_the_largest(place: Place, sending: Send) -> None:
    log = place.open()
    assert sending(log, LAST_SEQUENCE - 2) == range(3)
    assert sending(log, 0) == range(3, 6)
    assert sending(log, LAST_SEQUENCE - 2) == range(3)
    with pytest.raises(OutOfOrderSequence):
        sending(log, 5)


@pytest.mark.parametrize("restart", ["none", "clean", "unclean", "no file"])
def test_batch_across_the_largest_sequence_is_recognised(place: Place, sending: Send, restart: str) -> None:
    log = place.open()
    assert sending(log, LAST_SEQUENCE - 1, 5) == range(5)
    log = restarted(place, log, restart)
    assert sending(log, LAST_SEQUENCE - 1, 5) == range(5)
    with pytest.raises(OutOfOrderSequence):
        sending(log, 4)
    assert sending(log, 3) == range(5, 8)


def restarted(place: Place, log: Log, how: str) -> Log:
    if how == "none":
        return log
    if how == "unclean":
        return place.copy().open()
    log.close()
    if how == "no file":
        place.remove("producers")
    elif how == "damaged file":
        place.flip("producers", 25)
    elif how == "empty file":
        place.write("producers", b"")
    elif how == "no checkpoint":
        place.remove("checkpoint")
    return place.open()


RESTARTS = ["clean", "unclean", "no file", "damaged file", "empty file", "no checkpoint"]


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("sealed", [False, True])
def test_duplicates_are_recognised_after_a_restart(place: Place, sending: Send, restart: str, sealed: bool) -> None:
    log = place.open()
    sending(log, 0)
    if sealed:
        log.seal()
    fill(log, 2)
    sending(log, 3)
    sending(log, 0, id=8, epoch=4)
    log = restarted(place, log, restart)
    assert sending(log, 0) == range(3)
    assert sending(log, 3) == range(5, 8)
    assert sending(log, 0, id=8, epoch=4) == range(8, 11)
    with pytest.raises(ProducerFenced):
        sending(log, 0, id=8, epoch=3)
    with pytest.raises(OutOfOrderSequence):
        sending(log, 7)
    assert sending(log, 6) == range(11, 14)
    assert len(log) == 14


@pytest.mark.parametrize("restart", ["none", *RESTARTS])
def test_producer_with_old_timestamps_is_not_forgotten(place: Place, restart: str) -> None:
    """The clock determines how long a producer has been silent, not timestamps: a program may replay old events."""
    log = place.open()
    send(log, 0, timestamp=1000)
    log.seal()
    send(log, 3, timestamp=1000)
    log = restarted(place, log, restart)
    assert send(log, 0, timestamp=1000) == range(3)
    assert send(log, 3, timestamp=1000) == range(3, 6)
    assert len(log) == 6


def test_silent_producer_is_forgotten_in_the_end(place: Place) -> None:
    log = place.open(producer_expiry_ms=1)
    send(log, 0, timestamp=now_ms() - 10_000)
    start = now_ms()
    while now_ms() < start + 3:
        pass
    log.seal()
    assert send(log, 100) == range(3, 6)


# --- several batches in one call


def test_consecutive_batches_in_one_call_are_one_sequence(place: Place) -> None:
    log = place.open()
    send(log, 0, 10)
    raw = encode([b"a"] * 5, producer=Producer(7, 0, 10)) + encode([b"b"] * 5, producer=Producer(7, 0, 15))
    assert log.append_batches(raw) == range(10, 20)
    assert log.append_batches(raw) == range(10, 20)
    assert send(log, 20, 1) == range(20, 21)


def test_gap_inside_one_call_is_refused(place: Place) -> None:
    log = place.open()
    raw = encode([b"a"] * 5, producer=Producer(7, 0, 0)) + encode([b"b"] * 5, producer=Producer(7, 0, 6))
    with pytest.raises(OutOfOrderSequence):
        log.append_batches(raw)
    assert len(log) == 0
    assert send(log, 0, 5) == range(5)


def test_batch_twice_in_one_call_is_not_stored_twice(place: Place) -> None:
    log = place.open()
    batch = encode([b"a"] * 5, producer=Producer(7, 0, 0))
    try:
        log.append_batches(batch + batch)
    except ProducerError:
        assert len(log) == 0
    else:
        assert len(log) == 5


def test_known_and_new_batches_in_one_call(place: Place) -> None:
    log = place.open()
    old = encode([b"a"] * 2, producer=Producer(7, 0, 0))
    new = encode([b"b"] * 2, producer=Producer(7, 0, 2))
    plain = encode([b"c"] * 2)
    log.append_batches(old)
    assert log.append_batches(old + plain + new) == range(2, 6)
    assert values(log) == [b"a", b"a", b"c", b"c", b"b", b"b"]
    assert log.append_batches(old + new) == range(6)


def test_expected_offset_is_checked_before_anything_is_recognised(place: Place) -> None:
    log = place.open()
    assert log.append_many([b"a"], 0, producer=Producer(7, 0, 0)) == range(1)
    with pytest.raises(SawlogError):
        log.append_many([b"a"], 5, producer=Producer(7, 0, 0))
    assert len(log) == 1


# --- truncation


def test_truncation_forgets_what_it_drops(place: Place, sending: Send) -> None:
    log = place.open()
    sending(log, 0)
    sending(log, 3)
    log.truncate(3)
    assert sending(log, 3) == range(3, 6)
    log.truncate(0)
    assert sending(log, 0) == range(3)


@pytest.mark.parametrize("restart", ["none", *RESTARTS])
def test_truncation_remembers_what_it_keeps(place: Place, sending: Send, restart: str) -> None:
    """Even if all of the last five batches are dropped: the batches before them are still in the log."""
    log = place.open(segment_bytes=400)
    for i in range(12):
        sending(log, i, 1)
    log.truncate(4)
    log = restarted(place, log, restart)
    assert [sending(log, i, 1) for i in range(4)] == [range(i, i + 1) for i in range(4)]
    with pytest.raises(OutOfOrderSequence):
        sending(log, 9, 1)
    assert sending(log, 4, 1) == range(4, 5)


@pytest.mark.parametrize("restart", ["none", *RESTARTS])
def test_what_is_known_of_a_batch_cut_through_does_not_depend_on_a_restart(place: Place, restart: str) -> None:
    log = place.open()
    send(log, 0, 4)
    send(log, 4, 4)
    log.truncate(6)
    log = restarted(place, log, restart)
    with pytest.raises(OutOfOrderSequence):
        send(log, 8, 1)
    assert send(log, 0, 4) == range(4)
    assert send(log, 4, 2) == range(4, 6)
    assert send(log, 6, 2) == range(6, 8)


def test_failed_append_is_not_remembered(place: Place) -> None:
    log = place.open(segment_bytes=300)
    with pytest.raises(SawlogError):
        log.append_many([b"x" * 1000], producer=Producer(7, 0, 0))
    assert send(log, 0) == range(3)


@pytest.mark.parametrize(
    "producer",
    [
        *[(2**63, 0, 0), (-2, 0, 0), (1, 2**15, 0), (1, 0, 2**31), (1, -1, 0), (1, 0, -1)],
        *[("a", 0, 0), (1, 0, None), (1.5, 0, 0)],
    ],
)
def test_producer_that_cannot_be_is_refused(place: Place, producer: tuple[Any, Any, Any]) -> None:
    log = place.open()
    with pytest.raises(InvalidRecord):
        log.append_many([b"x"], producer=Producer(*producer))
    assert len(log) == 0


def test_many_producers_survive_a_restart(place: Place) -> None:
    log = place.open(segment_bytes=2000)
    for sequence in range(3):
        for id in range(40):
            send(log, sequence, 1, id=id)
    log = place.copy().open()
    for id in range(40):
        for sequence in range(3):
            assert send(log, sequence, 1, id=id) == range(sequence * 40 + id, sequence * 40 + id + 1)
    assert len(log) == 120


def test_trim_keeps_the_producers(place: Place, sending: Send) -> None:
    log = place.open()
    sending(log, 0)
    log.seal()
    log.trim(3)
    with pytest.raises(OutOfOrderSequence):
        sending(log, 9)
    assert sending(log, 3) == range(3, 6)


CHANGES = [  # producer, whether the batch belongs to a transaction
    (Producer(7, 0, 6), False),
    (Producer(7, 1, 0), False),
    (Producer(8, 0, 0), False),
    (Producer(7, 0, 6), True),
    (Producer(8, 0, 0), True),
]


@pytest.mark.parametrize(("producer", "in_transaction"), CHANGES)
def test_an_interrupted_note_changes_nothing_or_reaches_its_offset(producer: Producer, in_transaction: bool) -> None:
    def noted() -> ProducerState:
        state = ProducerState(1000, Transactions())
        for offset in (0, 3):
            state.note(7, 0, offset, offset, offset + 2, 0)
        return state

    rows = rows_of(memoryview(bytearray(encode([b"a", b"b"], base_offset=6, producer=producer))))
    if in_transaction:
        rows[:, ATTRIBUTES] |= TRANSACTIONAL_BIT
    before, interrupted = noted().encode(6, 0), 0
    for number in range(1, 200):
        state, interrupter = noted(), Interrupter(number)
        with suppress(Stop), interrupter.on():
            state.note_rows(rows, 0)
        if not interrupter.done:
            break
        interrupted += 1
        assert state.reaches(6) or state.encode(6, 0) == before
    assert interrupted > 5
