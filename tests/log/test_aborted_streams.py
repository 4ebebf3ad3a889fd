"""A stream that was aborted has never been there: not after closing the log, and not after a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sawlog import Log, LogConfig, SawlogError
from sawlog.testing import FaultyStorage


def upload() -> Iterator[bytes]:
    yield b"x" * 2000
    raise ConnectionError("the client went away")


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
