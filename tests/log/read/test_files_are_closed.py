"""Files are closed when nobody uses them any more, not when the garbage collector runs: on a small disk the room of a
deleted file is free only then, and a process may have few descriptors."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from sawlog import Log, LogConfig
from sawlog.store.directory.store import DirectoryStore

CONFIG = LogConfig(segment_bytes=300, durability="os")


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_below(directory: Path) -> set[str]:
    """Return the files of a directory that this process has open or mapped, including deleted ones."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    with open("/proc/self/maps") as maps:
        found += [line.split(maxsplit=5)[5].strip() for line in maps if "/" in line]
    return {name.removeprefix(str(directory)) for name in found if name.startswith(str(directory))}


def deleted_below(directory: Path) -> set[str]:
    return {name for name in open_below(directory) if name.endswith("(deleted)")}


def fill(log: Log, count: int = 40) -> None:
    for number in range(count):
        log.append(b"v" * 40, b"k%d" % (number % 3))


CHANGES: dict[str, Callable[[Log], object]] = {
    "truncate inside a segment": lambda log: log.truncate(7),
    "truncate the last segment": lambda log: log.truncate(log.next_offset - 1),
    "truncate everything": lambda log: log.truncate(0),
    "trim": lambda log: log.trim(20),
    "trim everything": lambda log: log.trim(log.next_offset),
    "compact": lambda log: log.compact(),
    "merge": lambda log: log._merge_segments(),
    "recompress": lambda log: log._recompress("zstd"),
    "rotate": lambda log: log.seal(),
    "everything expires": lambda log: log.remove_expired(0),
    "advance": lambda log: [log.trim(log.next_offset), log._advance(1000)],
}


@pytest.mark.alternating
@pytest.mark.sampled(8)  # 0.1 s each
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("used", ["written", "read", "reopened"])
def test_a_deleted_file_is_closed_at_once(tmp_path: Path, change: str, used: str) -> None:
    log = Log.open(tmp_path, CONFIG)
    fill(log)
    if used == "reopened":
        log.close()
        log = Log.open(tmp_path, CONFIG)
    if used == "read":
        assert len(list(log)) == 40
        log.read(5)
        log.fetch(0)
    CHANGES[change](log)
    assert not deleted_below(tmp_path)
    fill(log, 3)
    assert not deleted_below(tmp_path)
    log.close()
    assert not open_below(tmp_path)


def test_a_reader_in_the_middle_keeps_its_file_and_no_longer(tmp_path: Path) -> None:
    with Log.open(tmp_path, CONFIG) as log:
        fill(log)
        scan = iter(log)
        first = next(scan)
        page = log.fetch(0)
        log.trim(20)
        assert deleted_below(tmp_path)
        assert (first.offset, bytes(page.raw)[:8]) == (0, bytes(8))
        del scan, page, first
        assert not deleted_below(tmp_path)


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_log_that_reads_leaves_no_file_open(tmp_path: Path, mode: Literal["r", "a"]) -> None:
    with Log.open(tmp_path / "log", CONFIG) as log:
        fill(log)
    reading = Log.open(tmp_path / "log", CONFIG, mode=mode)
    assert len(list(reading)) == 40
    reading.read(3)
    reading.fetch(0)
    if mode == "a":
        reading.append(b"now it writes")
        assert len(list(reading)) == 41
        reading._release()
        assert len(list(reading)) == 41
    reading.close()
    assert not open_below(tmp_path)


def test_a_store_leaves_no_file_open(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        topic = store.create_topic("orders", partitions=2, segment_bytes=300)
        for number in range(40):
            topic.append(b"v" * 40, key=b"k%d" % number)
        with store.transaction() as transaction:
            for number in range(40):
                transaction.append("orders", b"v", key=b"k%d" % number)
        with DirectoryStore.open(tmp_path, "r") as other:
            assert sum(len(list(other.topic("orders").partition(number))) for number in range(2)) == 80
        with store.consumer("billing", ["orders"]) as consumer:
            consumer.poll(1)
            consumer.commit()
        store.create_topic("gone").append(b"v")
        store.delete_topic("gone")
        assert not deleted_below(tmp_path)
    assert not open_below(tmp_path)
