"""A writer that is interrupted while it takes or releases its lock leaves the log usable for all processes."""

from __future__ import annotations

import gc
from operator import attrgetter
from pathlib import Path

import pytest

import sawlog
from sawlog import Log

from ...faults.interrupts import Interrupter, Stop, Within, stop
from ..sampling import some_of, some_or_all

_LIBRARY = Path(sawlog.__file__).parent
#: Modules that register something in structures of the whole process.
REGISTERING = tuple(str(_LIBRARY / each) for each in ("storage/forking.py", "background.py", "log/turns.py"))

#: An interrupt in a finalizer cannot be raised; Python warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("quick_collections"),
]


@pytest.mark.alternating
@some_or_all(20)
def test_a_first_append_that_was_interrupted_anywhere_can_be_tried_again(tmp_path: Path, most: int | None) -> None:
    """The append takes the lock, recovers, and wakes waiting threads; an interrupt may come anywhere in between."""
    fired, moments = 0, some_of(range(1, 900, 17), most)
    for number in moments:
        path = tmp_path / str(number)
        Log.open(path).close()
        log = Log.open(path, mode="a")
        interrupter = Interrupter(number)
        try:
            with interrupter.on():
                log.append(b"first")
        except Stop:
            fired += 1
        del interrupter
        gc.collect()
        offset = log.append(b"second")
        assert (log.durable_offset, log.visible_offset, log.next_offset) == (offset + 1,) * 3, number
        assert log.read(offset).value == b"second"
        log.close()
        with Log.open(path) as again:
            assert [record.value for record in again][-1] == b"second", number
    assert fired > (10 if most is None else 0)


@pytest.mark.alternating
@some_or_all(15)
def test_a_first_append_to_a_store_that_was_interrupted_anywhere_affects_no_other_store(
    tmp_path: Path, most: int | None
) -> None:
    """It also registers timers and locks for the whole process. Other stores get the same descriptors."""
    fired, moments = 0, some_of(range(1, 100, 2), most)
    for number in moments:
        path = tmp_path / str(number)
        store = sawlog.open(path)
        topic = store.create_topic("t")
        interrupter = Within(stop, number, sources=REGISTERING)
        try:
            with interrupter.on(None):
                topic.append(b"first")
        except Stop:
            fired += 1
        del interrupter
        gc.collect()
        topic.append(b"second")
        values = [record.value for record in topic.scan()]
        assert values in ([b"second"], [b"first", b"second"]), number
        with sawlog.open(path) as again:
            assert again["t"].append(b"third").offset == len(values), number
        store.close()
        with sawlog.open(tmp_path / f"other {number}") as other:
            other.create_topic("t").append(b"x")
    assert fired > (20 if most is None else 0)


@pytest.mark.alternating
@some_or_all(12)
@pytest.mark.parametrize("end", ["close", "_release"])
def test_an_end_that_was_interrupted_anywhere_can_be_tried_again_and_keeps_no_lock(
    tmp_path: Path, end: str, most: int | None
) -> None:
    fired, moments = 0, some_of(range(1, 400, 11), most)
    for number in moments:
        path = tmp_path / str(number)
        Log.open(path).close()
        log = Log.open(path, mode="a")
        log.append(b"one")
        interrupter = Interrupter(number)
        try:
            with interrupter.on():
                attrgetter(end)(log)()
        except Stop:
            fired += 1
        del interrupter
        attrgetter(end)(log)()
        gc.collect()
        with Log.open(path) as again:
            assert [record.value for record in again] == [b"one"], number
        log.close()
    assert fired > (10 if most is None else 0)


@pytest.mark.slow
def test_a_named_transaction_that_was_interrupted_anywhere_is_stored_once_when_it_is_tried_again(
    tmp_path: Path,
) -> None:
    fired = 0
    for number in range(1, 4000, 89):
        path = tmp_path / str(number)
        with sawlog.open(path, maintenance_interval_s=None) as store:
            for topic in "ab":
                store.create_topic(topic)
            interrupter = Interrupter(number)
            try:
                with interrupter.on(), store.transaction("job", 1) as tx:
                    tx.append("a", b"1")
                    tx.append("b", b"1")
            except (Stop, sawlog.errors.TransactionError):
                fired += 1
            del interrupter
            gc.collect()
            try:
                with store.transaction("job", 1) as tx:
                    tx.append("a", b"1")
                    tx.append("b", b"1")
            except sawlog.errors.SawlogError:
                pass  # a failed log raises: opening the store again completes the append
        with sawlog.open(path, maintenance_interval_s=None) as store:
            with store.transaction("job", 1) as tx:
                tx.append("a", b"1")
                tx.append("b", b"1")
            found = [[record.value for record in store[topic].partition(0)] for topic in "ab"]
            assert found == [[b"1"], [b"1"]], number
    assert fired > 20
