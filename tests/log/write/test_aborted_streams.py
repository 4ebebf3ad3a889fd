"""A stream that was aborted has never been there: not after closing the log, and not after a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import SawlogError

from ...faults.disk import FaultyStorage


def upload() -> Iterator[bytes]:
    yield b"x" * 2000
    raise ConnectionError("the client went away")


@pytest.mark.alternating
@pytest.mark.sampled(6)  # 0.1 s each
@pytest.mark.parametrize("durability", ["always", "os"])
@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("mode", ["prefix", "tear", "reorder", "garbage", "keep", "lose"])
def test_a_power_cut_brings_nothing_of_it_back(mode: Any, closes: bool, durability: Any) -> None:
    for seed in range(20):
        disk = FaultyStorage(seed=seed)
        log = Log.open(disk, LogConfig(durability=durability))
        log.append(b"acknowledged")
        log.sync()
        with pytest.raises(SawlogError):
            log.append_stream(upload())
        with pytest.raises(SawlogError):
            log.append_stream([b"y" * 100] * 20, max_bytes=1000)
        if closes:
            log.close()
        with Log.open(disk.crash(mode, seed=seed)) as again:
            assert not again.recovery.corruption, str(again.recovery)
            assert [record.value for record in again] == [b"acknowledged"]
            assert again.verify()


class Stop(BaseException):
    """An interrupt."""


@pytest.mark.parametrize("mode", ["prefix", "tear", "reorder", "keep"])
def test_an_append_that_was_interrupted_after_its_write_is_not_back_after_a_power_cut(mode: Any) -> None:
    for seed in range(30):
        disk = FaultyStorage(seed=seed)
        log = Log.open(disk.plain)
        log.append(b"acknowledged")
        opened = log._segment_set.active._open
        assert opened is not None
        inner = opened.storage

        class Interrupted:
            """The bytes are written, and the caller never hears of it."""

            def __getattr__(self, name: str, inner: Any = inner) -> Any:
                return getattr(inner, name)

            def append(self, data: bytes, inner: Any = inner) -> int:
                inner.append(data)
                raise Stop

        opened.storage = Interrupted()  # type: ignore[assignment]
        with pytest.raises(Stop):
            log.append(b"the caller was told that this failed" * (1 if seed % 2 else 200))
        with Log.open(disk.crash(mode, seed=seed).plain) as again:
            assert [record.value for record in again] == [b"acknowledged"]
