"""Ctrl-C again and again, faster than it can be handled: the log is whole, or says that it has failed."""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import LogFailed, OffsetOutOfRange

from ...alarms import alarms


@pytest.fixture(autouse=True)
def interrupts_that_are_lost_are_ignored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ignore exceptions in finalizers, which the interpreter only reports, and the warning about a directory iterator
    whose block was interrupted."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    gc.collect()


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.3 s each
@pytest.mark.parametrize("durability", ["always", "os"])
def test_bursts_of_interrupts_during_every_kind_of_change(tmp_path: Path, durability: Any) -> None:
    """Interrupts come while others are being handled, several times. After each burst, and after reopening, the log is
    whole or reports that it has failed, and has the records appended without interrupts."""
    rng = random.Random(7)
    armed = False

    def strike(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    def change(log: Log) -> None:
        kind = rng.choice(["append", "append_many", "append_stream", "seal", "truncate", "trim"])
        if kind == "append":
            log.append(b"x" * rng.choice([0, 10, 300]))
        elif kind == "append_many":
            log.append_many([b"x" * rng.choice([0, 10, 300])] * 5)
        elif kind == "append_stream":
            log.append_stream([b"abc"] * 50)
        elif kind == "seal":
            log.seal()
        elif kind == "truncate":
            log.truncate(max(log.lowest_offset, log.next_offset - rng.randrange(4)))
        else:
            log.trim(min(log.visible_offset, log.lowest_offset + rng.randrange(30)))

    config = LogConfig(segment_bytes=2000, durability=durability)
    lives = failed = 0
    with alarms(strike):
        while lives < 10:
            lives += 1
            log = Log.open(tmp_path / str(lives), config)
            for _ in range(60):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00002, 0.0008), rng.choice([0.00003, 0.0001, 0.001]))
                try:
                    armed = True
                    change(log)
                except (KeyboardInterrupt, OffsetOutOfRange):
                    pass  # out of range: the end that was asked for was that of an append that is rolled back first
                except LogFailed:
                    failed += 1
                    break
                finally:
                    armed = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
                for _ in log.scan():
                    pass
            offset = -1
            try:
                offset = log.append(b"in peace")
            except LogFailed:
                pass
            log.close()
            with Log.open(tmp_path / str(lives), config) as again:
                assert again.verify(), f"life {lives}: {again.verify()}\n{again.recovery}"
                assert offset < 0 or again[offset].value == b"in peace"
