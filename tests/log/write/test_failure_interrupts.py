"""Ctrl-C at any moment: the log verifies, holds the acknowledged records, and continues.

CPython runs signal handlers when a function begins and when a call into C returns, and at no other point that matters
here. A profile function is called at the same points, so an interrupt can be tried at each of them, instead of hoping
that a timer hits them all. A timer follows as a cross-check.
"""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.storage import MemoryDirectory

from ...alarms import alarms
from ...faults.seeds import repeat, seed_of_this_run
from ...processes import content
from ...processes.operations import CONFIG, OPERATIONS, Promise, fill
from ..maintain.test_rewrite_crashes import copy_of

#: Operations whose steps are tried one by one; the others are made of the same steps.
TRIED = [
    "append",
    "append_with_rotation",
    "append_many",
    "append_batches",
    "append_stream",
    "writer_flush",
    "seal",
    "truncate_in_batch",
    "trim",
    "sync",
]


class Hung(BaseException):
    """The log did not continue."""


@contextmanager
def watched(seconds: float = 10.0) -> Iterator[None]:
    """Raise `Hung` if the block takes forever."""

    def give_up(*_: Any) -> None:
        raise Hung

    with alarms(give_up):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Run with an interrupt at the `at`-th place where one can come; whether there was such a place."""
    count = 0
    hit = False

    def look(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count, hit
        if event in {"call", "c_return"} and "sawlog" in frame.f_code.co_filename and not hit:
            count += 1
            if count == at:
                hit = True
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        assert hit
    finally:
        sys.setprofile(None)
    return hit


@pytest.fixture(autouse=True)
def only_interrupts_are_ignored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow interrupts in finalizers, where the interpreter reports and ignores them; no other unraisable exception."""
    others: list[str] = []

    def look(unraisable: Any) -> None:
        # After an interrupt between `os.scandir` and its `with`, the interpreter closes the iterator and warns.
        is_scan = issubclass(unraisable.exc_type, ResourceWarning) and "scandir" in str(unraisable.exc_value)
        if not is_scan and not issubclass(unraisable.exc_type, KeyboardInterrupt):
            others.append(f"{unraisable.exc_value!r} in {unraisable.object!r}")

    monkeypatch.setattr(sys, "unraisablehook", look)
    yield
    gc.collect()
    assert not others


@pytest.mark.alternating
@pytest.mark.sampled(3)  # 0.4 s each
@pytest.mark.parametrize("stride", [pytest.param(12, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TRIED)
def test_an_interrupt_at_any_place_leaves_a_log_that_goes_on(name: str, stride: int) -> None:
    operation, config = OPERATIONS[name]
    start, acknowledged = MemoryDirectory(), Promise()
    with Log.open(start, config) as log:
        fill(log, acknowledged)
    failures = []
    place = tried = 0
    chance = random.Random(seed_of_this_run())
    while True:
        # The first places one by one; of long operations, which repeat themselves, a part of the rest.
        place += chance.randint(1, stride) * (1 if place < 120 else 4)
        tried += 1
        directory = copy_of(start)
        promise = Promise(dict(acknowledged.kept), set(acknowledged.sent), prefix="n")
        log = Log.open(directory, config)
        hit = interrupted(lambda log=log, promise=promise: operation(log, promise), place)  # type: ignore[misc]
        try:
            with watched():
                check_goes_on(log, directory, config, promise, may_fail=name.startswith("truncate"))
        except (Exception, Hung) as error:
            failures.append(f"place {place}: {type(error).__name__}: {str(error)[:150]}")
        if not hit:
            break
    assert place > 20
    assert not failures, f"{len(failures)} of {tried} places ({repeat()}):\n   " + "\n   ".join(failures[:20])


def check_goes_on(log: Log, directory: MemoryDirectory, config: LogConfig, promise: Promise, may_fail: bool) -> None:
    """An interrupt says nothing about the disk: appending has to work. Only a truncation that was begun must be
    finished by reopening."""
    promise.check_reading(log)
    assert promise.try_append(log) or may_fail, "an interrupt has failed the log"
    promise.check_reading(log)
    assert log.verify(), str(log.verify())
    log.close()
    with Log.open(directory, config) as again:
        assert again.recovery, str(again.recovery)
        assert again.verify(), str(again.verify())
        promise.check_reading(again)
        assert promise.try_append(again)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a finalizer
@pytest.mark.sampled(1)  # 0.4 s each
@pytest.mark.parametrize("again_s", [0.004, 0.00004], ids=["once", "in bursts"])
@pytest.mark.parametrize("durability", ["always", "os"])
def test_interrupts_by_a_timer(tmp_path: Path, durability: Any, again_s: float) -> None:
    """A real signal, at any time, on files; and several, so that they come while others are being handled."""
    config = CONFIG.with_(segment_bytes=20_000, durability=durability)
    log = Log.open(tmp_path, config)
    rng = random.Random(5)
    armed = False
    numbers = iter(range(10**9))
    sent: list[bytes] = []
    acknowledged: dict[int, bytes] = {}

    def strike(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    def append() -> None:
        sent.append(content.make(str(next(numbers)), rng.choice([0, 100, 1000])))
        acknowledged[log.append(sent[-1])] = sent[-1]

    def append_many() -> None:
        values = [content.make(str(next(numbers))) for _ in range(5)]
        sent.extend(values)
        acknowledged.update(zip(log.append_many(values), values, strict=True))

    def append_stream() -> None:
        value = content.make(str(next(numbers)), 500)
        sent.append(value)
        acknowledged[log.append_stream([value[:100], value[100:]])] = value

    strikes = 0
    with alarms(strike):
        while strikes < 100:
            # Again and again: one that comes while an object is let go is lost.
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.004), again_s)
            try:
                armed = True
                while True:
                    rng.choice([append, append_many, append_stream])()
            except KeyboardInterrupt:
                armed = False
                strikes += 1
    append()
    assert log.verify(), str(log.verify())
    log.close()
    with Log.open(tmp_path, config) as log:
        assert log.recovery.clean
        assert log.verify()
        known = set(sent)
        found = {record.offset: record.value or b"" for record in log.scan()}
        assert set(found.values()) <= known
        assert len(set(found.values())) == len(found), "a record was stored twice"
        assert acknowledged.items() <= found.items()
