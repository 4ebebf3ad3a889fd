"""A signal handler may raise during an append. Then nothing is stored twice, and nothing is lost.

A number chooses one of the places where the interpreter would call a handler (see `Within`), so that a run can be
repeated and all places can be tried. A second interrupt during the handling of the first is tried as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from sawlog import Log, LogConfig, Producer
from sawlog.log import streams
from sawlog.storage import MemoryDirectory

from ...faults.disk import FaultyStorage
from ...faults.interrupts import Interrupter, Stop
from ..sampling import some_of, some_or_all

#: Garbage collection may be interrupted as well.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


#: Number of moments that the quick tests try, for each configuration.
SOME = 40


def numbers() -> Iterator[tuple[int, ...]]:
    """Return the places of interrupts: one interrupt at many places, two at fewer."""
    for first in (*range(1, 160), *range(160, 420, 3)):
        yield (first,)
    for first in range(1, 130, 5):
        for second in (1, 3, 7, 15, 30):
            yield first, second


@pytest.fixture(
    params=[("always", 4000), ("always", 460), ("os", 4000), ("os", 460)], ids=lambda each: f"{each[0]}-{each[1]}"
)
def config(request: pytest.FixtureRequest) -> LogConfig:
    """Return settings: with room for everything in one segment, or with a rotation during the append."""
    durability, segment_bytes = request.param
    return LogConfig(durability=durability, segment_bytes=segment_bytes, checkpoint_interval_ms=3_600_000)


def until_done(call: Callable[[], Any], interrupter: Interrupter) -> Any:
    """Repeat a call after each interrupt, like a program that catches it."""
    for _ in range(10):
        try:
            with interrupter.on():
                return call()
        except Stop:
            continue
    raise AssertionError("interrupted ten times")


@pytest.mark.alternating
@pytest.mark.sampled(1)  # of the configurations
@some_or_all(SOME)
def test_a_producers_batch_is_stored_once_whenever_an_interrupt_comes(config: LogConfig, most: int | None) -> None:
    fired, moments = 0, some_of(numbers(), most)
    for when in moments:
        with Log.open(MemoryDirectory(), config) as log:
            log.append_many([b"before"], producer=Producer(7, 0, 0))
            interrupter = Interrupter(*when)
            values = [b"one", b"two", b"x" * 300]
            send = partial(log.append_many, values, producer=Producer(7, 0, 1))
            placed = until_done(send, interrupter)
            assert [log.read(offset).value for offset in placed] == values, when
            log.append_many([b"after"], producer=Producer(7, 0, 4))
            assert [record.value for record in log.scan()] == [b"before", *values, b"after"], when
            assert log.verify(), when
            fired += interrupter.done
    assert fired > (50 if most is None else 0)  # a flush has about 80 moments; a sample may hit few of them


@pytest.mark.alternating
@pytest.mark.sampled(2)  # of the configurations
@some_or_all(SOME)
def test_a_writers_records_are_stored_once_whenever_a_flush_is_interrupted(config: LogConfig, most: int | None) -> None:
    fired, moments = 0, some_of(numbers(), most)
    for when in moments:
        with Log.open(MemoryDirectory(), config) as log:
            writer = log.writer(batch_bytes=4000)
            writer.append(b"before")
            writer.flush()
            interrupter = Interrupter(*when)
            writer.append(b"one")
            writer.append(b"two")
            until_done(writer.flush, interrupter)
            writer.append(b"after")
            writer.flush()
            assert [record.value for record in log.scan()] == [b"before", b"one", b"two", b"after"], when
            fired += interrupter.done
    assert fired > (50 if most is None else 0)  # a flush has about 80 moments; a sample may hit few of them


@pytest.mark.sampled(2)  # of the configurations
@some_or_all(SOME)
def test_an_append_that_was_interrupted_is_there_once_or_not_at_all(config: LogConfig, most: int | None) -> None:
    for when in some_of(numbers(), most):
        directory = MemoryDirectory()
        log = Log.open(directory, config)
        log.append(b"before")
        interrupter = Interrupter(*when)
        told = True
        try:
            with interrupter.on():
                log.append(b"x" * 300)
        except Stop:
            told = False
        log.append(b"after")
        found = [record.value for record in log.scan()]
        assert found in ([b"before", b"x" * 300, b"after"], [b"before", b"after"]), when
        assert not told or len(found) == 3, when
        assert log.durable_offset <= log.visible_offset == log.next_offset, when
        assert log.verify(), when
        log.close()
        with Log.open(directory, config) as again:
            assert [record.value for record in again.scan()] == found, when


@pytest.mark.sampled(1)  # of the configurations
@some_or_all(SOME)
def test_an_append_of_several_batches_that_was_interrupted_is_there_wholly_or_not_at_all(
    config: LogConfig, most: int | None
) -> None:
    for when in some_of(numbers(), most):
        with Log.open(MemoryDirectory(), config) as log:
            log.append(b"before")
            interrupter = Interrupter(*when)
            try:
                with interrupter.on(), log._appending():
                    for number in range(4):
                        log.append(b"%d" % number * 200)
            except Stop:
                pass
            if not log._is_writable:  # it could not be rolled back; reopening the log does that
                continue
            log.append(b"after")
            found = [record.value for record in log.scan()]
            assert found[0] == b"before", when
            assert found[-1] == b"after", when
            assert len(found) in (2, 6), when


@pytest.mark.alternating
@pytest.mark.sampled(2)  # 0.2 s each
@pytest.mark.parametrize("mode", ["prefix", "tear", "reorder", "garbage", "keep", "lose"])
def test_what_an_interrupt_took_back_is_not_there_after_a_power_cut_either(mode: Any) -> None:
    for number in range(1, 100, 3):
        disk = FaultyStorage(seed=number)
        log = Log.open(disk.plain)
        log.append(b"acknowledged")
        told = True
        try:
            with Interrupter(number).on():
                log.append(b"the caller was told that this failed")
        except Stop:
            told = False
        there = len(log) == 2 or log.next_offset == 2
        log.close()
        with Log.open(disk.crash(mode, seed=number).plain) as again:
            assert len(again) == (2 if there else 1), (number, told)
            assert again.recovery, str(again.recovery)


@pytest.mark.sampled(1)  # of the configurations
@some_or_all(SOME)
def test_a_stream_that_was_interrupted_on_its_way_to_the_next_segment_is_there_once_or_not_at_all(
    config: LogConfig, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_BLOCK_BYTES", 100)
    config = config.with_(segment_bytes=1200, segment_overflow_bytes=0)
    stored = 0
    for (when,) in some_of(((number,) for number in range(1, 1500, 2)), most):
        directory = MemoryDirectory()
        log = Log.open(directory, config)
        log.append(b"before" * 100)
        told = True
        try:
            with Interrupter(when).on():
                log.append_stream([b"x" * 100] * 9)
        except Stop:
            told = False
        log.append(b"after")
        expected = [b"before" * 100, b"x" * 900, b"after"]
        found = [record.value for record in log.scan()]
        assert found in (expected, [expected[0], expected[2]]), when
        assert not told or len(found) == 3, when
        stored += len(found) == 3
        assert log.verify(), when
        log.close()
        with Log.open(directory, config) as again:
            assert [record.value for record in again.scan()] == found, when
    assert stored > 0 or most is not None  # a sample may hit no moment after the stream was placed
