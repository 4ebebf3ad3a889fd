"""Timed work runs on time, however long other callers wait, and keeps no object alive."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
import weakref
from pathlib import Path

import pytest

from sawlog import Interval, Log, LogConfig, background
from sawlog.errors import LogClosed

from .log.places import eventually


class Customer:
    """Counts its calls; waits in each of them if it is told to."""

    def __init__(self) -> None:
        self.calls = 0
        self.inside = 0
        self.most_inside = 0
        self.gate: threading.Event | None = None
        self._lock = threading.Lock()

    def call(self) -> None:
        with self._lock:
            self.calls += 1
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        if self.gate is not None:
            self.gate.wait(60)
        with self._lock:
            self.inside -= 1


def test_background_calls_that_block_delay_no_others() -> None:
    gate = threading.Event()
    stuck = [Customer() for _ in range(20)]
    try:
        for each in stuck:
            each.gate = gate
            background.every(0.001, each.call)
        assert eventually(lambda: all(each.calls for each in stuck))
        other = Customer()
        background.every(0.001, other.call)
        assert eventually(lambda: other.calls > 20)
        assert [each.calls for each in stuck] == [1] * 20, "nobody is called again before it has returned"
    finally:
        gate.set()
    assert eventually(lambda: all(each.calls > 3 for each in stuck)), "and then it goes on"
    assert [each.most_inside for each in stuck] == [1] * 20


def test_a_customer_is_not_kept_alive() -> None:
    customer = Customer()
    background.every(0.001, customer.call)
    gone = weakref.ref(customer)
    assert eventually(lambda: (found := gone()) is not None and found.calls > 2)
    del customer
    assert eventually(lambda: gc.collect() >= 0 and gone() is None)


def test_workers_end_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_IDLE_S", 0.05)
    gate = threading.Event()
    stuck = [Customer() for _ in range(10)]
    for each in stuck:
        each.gate = gate
        background.every(0.001, each.call)
    assert eventually(lambda: all(each.calls for each in stuck))
    before = sum(thread.name == "sawlog-background-work" for thread in threading.enumerate())
    assert before >= 10
    gate.set()
    stuck.clear()
    del each
    assert eventually(
        lambda: sum(thread.name == "sawlog-background-work" for thread in threading.enumerate()) <= before - 8
    )


def test_a_cancelled_task_is_not_called_again() -> None:
    customer, other = Customer(), Customer()
    task = background.every(0.001, customer.call)
    assert eventually(lambda: customer.calls > 2)
    task.cancel()
    task.wait()
    calls = customer.calls
    background.every(0.001, other.call)
    assert eventually(lambda: other.calls > 20)
    assert customer.calls == calls


@pytest.mark.parametrize("once", [True, False])
def test_a_task_whose_log_is_closed_meanwhile_ends(monkeypatch: pytest.MonkeyPatch, *, once: bool) -> None:
    class Closed(Customer):
        def call(self) -> None:
            super().call()
            raise LogClosed("by another thread")

    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    customer, other = Closed(), Customer()
    task = background.soon(customer.call) if once else background.every(0.001, customer.call)
    assert eventually(lambda: customer.calls == 1)
    task.wait()
    background.every(0.001, other.call)
    assert eventually(lambda: other.calls > 20)
    assert (customer.calls, failures) == (1, [])


def test_a_task_that_is_called_can_be_waited_for() -> None:
    customer = Customer()
    customer.gate = threading.Event()
    task = background.every(0.001, customer.call)
    assert eventually(lambda: customer.inside == 1)
    waiting = threading.Thread(target=task.wait)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive(), "the call goes on"
    customer.gate.set()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_task_that_waits_for_itself_does_not_hang() -> None:
    class Closing(Customer):
        def call(self) -> None:
            task.cancel()
            task.wait()
            super().call()

    customer = Closing()
    task = background.every(0.001, customer.call)
    assert eventually(lambda: customer.calls == 1)


def test_a_forked_child_does_not_wait_for_a_call_of_its_parent() -> None:
    customer = Customer()
    customer.gate = threading.Event()
    task = background.every(0.001, customer.call)
    assert eventually(lambda: customer.inside == 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks with threads
        child = os.fork()
    if not child:
        signal.alarm(20)
        task.cancel()
        task.wait()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    customer.gate.set()


def test_what_is_asked_for_while_suspended_is_never_called() -> None:
    never, once, other = Customer(), Customer(), Customer()
    with background.suspended():
        background.every(0.001, never.call)
        background.soon(once.call)
    background.every(0.001, other.call)
    assert eventually(lambda: other.calls > 20 and once.calls == 1)
    assert not never.calls


def test_a_stalled_stream_stops_no_interval_of_another_log(tmp_path: Path) -> None:
    go, started = threading.Event(), threading.Event()

    def slow() -> list[bytes]:
        yield b"first part"  # type: ignore[misc]
        started.set()
        go.wait(60)
        yield b"last part"  # type: ignore[misc]

    config = LogConfig(durability=Interval(ms=20))
    with Log.open(tmp_path / "a") as stalled, Log.open(tmp_path / "b", config) as other:
        writer = stalled.writer(linger_ms=5)
        thread = threading.Thread(target=stalled.append_stream, args=(slow(),))
        thread.start()
        assert started.wait(60)
        try:
            writer.append(b"a record that lingers, and waits for the stream")
            for number in range(5):
                other.append(b"%d" % number)
                assert eventually(lambda: other.durable_offset == other.next_offset)
        finally:
            go.set()
            thread.join()
