"""An end that threads wait for."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from typing import Any

import pytest

from sawlog.closing import OneShotEvent
from sawlog.storage.forking import forkable

from .alarms import alarms


def test_it_comes_once_and_stays() -> None:
    ending = OneShotEvent()
    assert not ending.is_set()
    assert not ending.wait(0)
    assert not ending.wait(-1)
    ending.set()
    ending.set()
    assert ending.is_set()
    assert ending.wait(60)


def test_every_waiting_thread_continues() -> None:
    ending = OneShotEvent()
    gone_on: list[bool] = []
    threads = [threading.Thread(target=lambda: gone_on.append(ending.wait(60))) for _ in range(8)]
    for thread in threads:
        thread.start()
    ending.set()
    for thread in threads:
        thread.join(60)
    assert gone_on == [True] * 8


def test_a_forked_child_can_wait_and_end() -> None:
    ending = forkable(OneShotEvent())
    child = os.fork()
    if not child:
        ending.set()
        os._exit(0 if ending.wait(0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not ending.is_set()


def test_interrupts_in_the_middle_of_it_leave_no_thread_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    # An interrupt may come in a finalizer, where no caller can catch it.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    armed = False

    def strike(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    rng = random.Random(1)
    with alarms(strike):
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends:
            ending = OneShotEvent()
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, 0.0001), 0.00002)
            try:
                armed = True
                while True:
                    ending.wait(0)
                    ending.set()
            except KeyboardInterrupt:
                armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            ending.set()
            assert ending.wait(0)
