"""Appends in one kernel call have the same effect as prepared ones: the same bytes, state and errors.

`Placer` places every batch. A log whose placer is not `enabled` prepares each append in `Appender.place`; here it is
the reference for one that prepares only when necessary. `placed` counts the appends in one call, so that no test passes
because there were none.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sawlog import Interval, Log, LogConfig, Producer
from sawlog.batch import kernel
from sawlog.errors import InvalidRecord, LogClosed, LogFailed, OffsetMismatch, RecordTooLarge, StorageError, StorageFull
from sawlog.log.appender import Appender
from sawlog.log.writer import Placement
from sawlog.storage import file as file_module
from sawlog.storage import published as published_module

from ...faults.disk import FaultyStorage
from ...processes.launch import run
from ..places import quick

T = 1_700_000_000_000
CONFIG = LogConfig(durability="os", index_interval_bytes=200, segment_age_ms=None, checkpoint_interval_ms=3_600_000)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick(monkeypatch):
        yield


def appender_of(log: Log) -> Appender:
    assert log._access.appender is not None
    return log._access.appender


def placed(log: Log) -> int:
    """Return the number of batches placed in one call."""
    return int(appender_of(log).placer.placed)


#: What `primed` appends.
FIRST = [b"first", b"second", b"third"]


def primed(log: Log) -> Log:
    """Append to an empty log. The first append prepares the segment, so the others take one call."""
    for value in FIRST:
        log.append(value, timestamp=T)
    assert placed(log) == 2
    return log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "log", CONFIG) as made:
        yield primed(made)


def state(log: Log) -> dict[str, Any]:
    """Everything that an append changes."""
    appender = appender_of(log)
    segment, watermarks = appender.active.segment, appender.durability
    index, published = segment.index, watermarks._published
    assert published is not None
    return {
        "tail": (segment.base_offset, *segment.tail),
        "size": (segment.storage.size, segment.storage._reserved),
        "ends": (watermarks.written, watermarks.synced, watermarks.durable, watermarks.epoch),
        "visible": (log.visible_offset, published.load()),
        "entries": [list(each) for each in (index.offsets, index.positions, index.times, index.time_offsets)],
        "times": (index.first_timestamp, index.max_timestamp, index.max_timestamp_offset, index.since_bytes),
        "unfinished": (appender.active.unfinished, appender.block),
    }


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.suffix in {".log", ".index", ".timeindex"} or path.name == "checkpoint"
    }


# --- the same as the ordinary way


def value_of(rng: random.Random) -> Any:
    size = rng.choice([0, 1, 20, 128, 300, 1000, 8000, 9000])
    data = rng.randbytes(size)
    return rng.choice([None, data, data, data, data, bytearray(data), memoryview(data)])


def one_append(rng: random.Random) -> Callable[[Log], object]:
    value, key = value_of(rng), rng.choice([None, b"", b"key", rng.randbytes(40)])
    stamp = T + rng.randrange(-5, 400)
    headers = rng.choice([(), (), None, [], (("h", b"v"),), {"a": None}])
    match rng.randrange(16):
        case 0:
            records = [(rng.randbytes(rng.randrange(200)), None, (), T + n) for n in range(rng.randrange(1, 30))]
            return lambda log: log.append_many(records)
        case 1:
            chunks = [rng.randbytes(rng.choice([0, 35, 3000])) for _ in range(rng.randrange(12))]
            return lambda log: log.append_stream(chunks, key, timestamp=stamp)
        case 2:
            ahead = rng.choice([0, 0, 1, -1])
            return lambda log: log.append(value, key, headers, stamp, log.next_offset + ahead)
        case 3:
            bad = rng.choice([{"timestamp": -1}, {"timestamp": 2**60}, {"key": "text"}, {"headers": 7}, {"value": 1.5}])
            given = {"value": value, "timestamp": stamp, **bad}
            return lambda log: log.append(**given)
        case 4:
            producer = Producer(7, 0, 0)
            return lambda log: log.append_many([(b"idempotent", None, (), T)], producer=producer)
        case _:
            return lambda log: log.append(value, key, headers, stamp)


def other(rng: random.Random) -> Callable[[Log], object]:
    def block(log: Log) -> None:
        with log._appending():
            log.append(b"one", timestamp=T)
            log.append(b"two", timestamp=T)

    def broken(log: Log) -> None:
        with log._appending():
            log.append(b"never", timestamp=T)
            raise KeyError

    part = rng.random()
    return rng.choice(
        [
            lambda log: log.seal(),
            lambda log: log.sync(),
            lambda log: log.truncate(int(log.lowest_offset + part * (log.next_offset - log.lowest_offset))),
            lambda log: log.trim(int(log.lowest_offset + part * (log.next_offset - log.lowest_offset) / 3)),
            block,
            broken,
        ]
    )


def outcome(call: Callable[[Log], object], log: Log) -> object:
    try:
        return call(log)
    except Exception as error:
        return type(error), str(error).replace(log.path, "")


CONFIGS = {
    "plain": CONFIG,
    "small segments": CONFIG.with_(segment_bytes=20_000, segment_age_ms=300),
    "small indexes": CONFIG.with_(index_interval_bytes=400, max_index_bytes=600),
    "interval": CONFIG.with_(durability=Interval(ms=3_600_000, bytes=3000)),
    "limited records": CONFIG.with_(max_record_bytes=500),
    "compressed": CONFIG.with_(compression="lz4"),
}


@pytest.mark.alternating
@pytest.mark.sampled(8)  # 0.1 s each
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_random_work_gives_the_same_files_and_the_same_state(config: LogConfig, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    short, long = (Log.open(tmp_path / name, config) for name in ("short", "long"))
    appender_of(long).placer.enabled = False
    for _ in range(150):
        call = one_append(rng) if rng.random() < 0.93 else other(rng)
        assert outcome(call, short) == outcome(call, long)
        assert state(short) == state(long)
    assert placed(short) > 20
    assert placed(long) == 0
    assert list(short.scan()) == list(long.scan())
    assert short.verify()
    short.close()
    long.close()
    assert files(tmp_path / "short") == files(tmp_path / "long")


@pytest.mark.parametrize("timestamp_type", ["create", "append"])
def test_the_clock_gives_the_time_where_none_is_given(tmp_path: Path, timestamp_type: Any) -> None:
    with Log.open(tmp_path / "log", CONFIG.with_(timestamp_type=timestamp_type)) as log:
        primed(log)
        log.append(b"now")
        log.append(b"then", timestamp=T)
        assert placed(log) == 4
        now, then = log.read(3), log.read(4)
        assert now.timestamp > T
        assert now.timestamp_type == then.timestamp_type == (timestamp_type == "append")
        assert (then.timestamp == T) == (timestamp_type == "create")
        assert log.verify()


def test_readers_in_other_processes_see_it_at_once(log: Log) -> None:
    with Log.open(log.path, mode="r") as reader:
        for number in range(5):
            offset = log.append(b"%d" % number)
            assert reader.visible_offset == offset + 1
            assert reader.read(offset).value == b"%d" % number
    assert placed(log) == 7


# --- what is not usual


def refused(log: Log, error: type[Exception]) -> None:
    before = placed(log)
    with pytest.raises(error):
        log.append(b"refused")
    assert placed(log) == before


def test_a_closed_log_refuses(log: Log) -> None:
    log.close()
    refused(log, LogClosed)


def test_a_log_that_has_failed_refuses(log: Log) -> None:
    log._fail(OSError("the disk is on fire"))
    refused(log, LogFailed)


def test_a_stream_must_not_append_to_its_own_log(log: Log) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"one"
        refused(log, InvalidRecord)
        yield b"two"

    assert log.append_stream(chunks()) == 3
    assert [record.value for record in log.scan(3)] == [b"onetwo"]


def test_parts_of_an_append_are_not_visible_before_it_ends(log: Log) -> None:
    with log._appending():
        assert log.append(b"part") == 3
        assert log.visible_offset == 3
    assert log.visible_offset == 4
    assert placed(log) == 2


def test_those_who_follow_are_woken(log: Log) -> None:
    woken = threading.Event()
    stop = log._watch(woken.set)
    before = placed(log)
    log.append(b"news")
    assert woken.is_set()
    assert placed(log) == before + 1
    stop()


def test_another_offset_than_expected_is_refused(log: Log) -> None:
    assert log.append(b"right", expect_offset=3) == 3
    assert placed(log) == 3
    with pytest.raises(OffsetMismatch):
        log.append(b"wrong", expect_offset=3)
    assert log.next_offset == 4


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", CONFIG.with_(max_record_bytes=100)) as log:
        primed(log)
        assert log.append(bytes(60), bytes(40)) == 3
        assert placed(log) == 3
        with pytest.raises(RecordTooLarge):
            log.append(bytes(60), bytes(41))
    with Log.open(tmp_path / "tiny", CONFIG.with_(segment_bytes=150)) as log, pytest.raises(RecordTooLarge):
        log.append(bytes(150))


def test_durability_always_waits_for_the_disk_after_one_call(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", CONFIG.with_(durability="always")) as log:
        primed(log)
        assert log.durable_offset == log.visible_offset == 3


@pytest.mark.parametrize("directory", [FaultyStorage().plain, None], ids=["simulated", "memory"])
def test_other_storages_are_written_in_one_call_too(directory: Any) -> None:
    with Log.in_memory(CONFIG) if directory is None else Log.open(directory, CONFIG) as log:
        primed(log)
        assert [record.value for record in log] == FIRST


def test_an_interval_waits_for_the_disk_when_enough_is_not_synced(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", CONFIG.with_(durability=Interval(ms=3_600_000, bytes=1000))) as log:
        durable = []
        for _ in range(40):
            log.append(bytes(60), timestamp=T)
            durable.append(log.durable_offset)
        assert placed(log) > 30
        assert len(set(durable)) > 4
        assert all(end - kept < 9 for end, kept in enumerate(durable, 1))


def test_an_answer_gets_the_offsets_and_is_not_asked_twice(log: Log) -> None:
    appender, placement = appender_of(log), Placement()
    encoder = appender.encoders.take()
    batch = encoder.one(b"once", None, (), T)
    assert appender.place(batch, placement=placement) == range(3, 4) == placement.placed
    assert placed(log) == 3
    assert appender.place(batch, placement=placement) == range(3, 4)
    assert log.next_offset == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_does_not_write(log: Log) -> None:
    appender = appender_of(log)
    batch = appender.encoders.take().one(b"the child's", None, (), T)
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(LogClosed):
            log.append(b"the child's")
            code = 2
        with suppress(LogClosed):
            appender.place(batch)
            code = 2
        os._exit(0 if code == 1 else code)
    assert os.waitpid(child, 0)[1] == 0
    assert log.append(b"the parent's") == 3
    assert placed(log) == 3
    assert [record.value for record in log.scan(3)] == [b"the parent's"]


def test_threads_that_append_at_the_same_time_get_different_offsets(log: Log) -> None:
    found: list[list[int]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        found[number].extend(log.append(b"%d" % number) for _ in range(300))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chain.from_iterable(found)) == list(range(3, 1203))
    for number, offsets in enumerate(found):
        assert {log.read(offset).value for offset in offsets} == {b"%d" % number}
    assert placed(log) > 1000
    assert log.verify()


# --- what an interrupt may have left

LEFT: dict[str, Callable[[Appender], None]] = {
    "closed": lambda it: setattr(it, "closed", True),
    "unfinished": lambda it: setattr(it.active, "unfinished", it.active.segment.tail),
    "bytes": lambda it: setattr(it.active.segment.storage, "_size", it.active.segment.tail[1] + 5),
    "nothing reserved": lambda it: setattr(it.active.segment.storage, "_reserved", 0),
}


@pytest.mark.parametrize("left", LEFT)
def test_what_is_left_is_cleared_up_first(log: Log, left: str) -> None:
    appender = appender_of(log)
    LEFT[left](appender)
    if left == "closed":
        refused(log, LogClosed)
        appender.closed = False
        return
    assert log.append(b"after", timestamp=T) == 3
    assert placed(log) == 2
    assert log.append(b"and after", timestamp=T) == 4
    assert placed(log) == 3, "it is not cleared up"
    assert state(log)["size"][0] == state(log)["tail"][2]
    assert log.verify()


def test_bytes_of_a_write_that_failed_are_not_sealed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Writes(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            log.append(b"x" * 100, timestamp=T)
    size = appender_of(log).active.segment.tail[1]
    log.seal()
    (sealed, _) = log.segments
    assert sealed.size_bytes == Path(sealed.path).stat().st_size == size
    assert log.append(b"after") == 3
    assert log.verify()


# --- limits of a segment and of the system


def test_a_segment_covers_no_more_offsets_than_an_index_can_name(tmp_path: Path) -> None:
    found = []
    for name in ("short", "long"):
        with Log.open(tmp_path / name, CONFIG) as log:
            if name == "long":
                appender_of(log).placer.enabled = False
            primed(log) if name == "short" else [log.append(value, timestamp=T) for value in FIRST]
            log._advance(2**31 - 6)
            for _ in range(9):
                log.append(b"x", timestamp=T)
            found.append([(each.base_offset, each.next_offset, each.size_bytes) for each in log.segments])
            assert log.verify()
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_what_cannot_be_mapped_is_published_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_module, "maps_safely", lambda fd: False)
    with Log.open(tmp_path / "log", CONFIG) as log, Log.open(log.path, mode="r") as reader:
        for number in range(5):
            log.append(b"x")
            assert reader.visible_offset == number + 1
        assert placed(log) == 4


# --- writes that fail


class Writes:
    """Stands in for `os.pwrite`: short writes and errors, as many as there are, then the real call."""

    def __init__(self, *troubles: int | BaseException) -> None:
        self.troubles = list(troubles)
        self.real = os.pwrite

    def __call__(self, fd: int, data: Any, position: int) -> int:
        if not self.troubles:
            return self.real(fd, data, position)
        trouble = self.troubles.pop(0)
        if isinstance(trouble, BaseException):
            self.real(fd, memoryview(data)[: len(data) // 2], position)
            raise trouble
        return self.real(fd, memoryview(data)[:trouble], position)


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "troubles",
    [(1,), (60,), (0, 0), (OSError(errno.EINTR, "Interrupted"),), (full(),), (70, 5, 1)],
    ids=lambda each: repr(each)[:30],
)
def test_a_write_that_fails_once_is_made_again(log: Log, troubles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Writes(*troubles))
        assert log.append(b"x" * 100, timestamp=T) == 3
    before = placed(log)
    assert log.append(b"after", timestamp=T) == 4
    assert placed(log) == before + 1
    assert state(log)["size"][0] == state(log)["tail"][2] == sum(map(len, logs(log)))
    assert [record.value for record in log.scan(3)] == [b"x" * 100, b"after"]
    assert log.verify()


def logs(log: Log) -> list[bytes]:
    return [path.read_bytes() for path in Path(log.path).glob("*.log")]


def test_a_write_that_keeps_failing_leaves_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    before, bytes_before = state(log), logs(log)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Writes(50, full(), full(), full()))
        with pytest.raises(StorageFull):
            log.append(b"x" * 100, timestamp=T)
    after = state(log)
    # The rollback was synced: everything before it is durable.
    assert {**after, "ends": 0} == {**before, "ends": 0}
    assert logs(log) == bytes_before
    assert log.append(b"after") == 3
    assert log.verify()


def test_what_cannot_be_rolled_back_ends_writing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Writes(50, full(), full(), full()))
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises((StorageError, LogFailed)):
            log.append(b"x" * 100, timestamp=T)
    refused(log, LogFailed)
    assert [record.value for record in log.scan()] == FIRST
    directory = log.path
    log.close()
    with Log.open(directory, CONFIG) as again:
        assert [record.value for record in again.scan()] == FIRST


def test_an_interrupt_during_a_write_of_another_caller_is_rolled_back(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Writes(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            log.append(b"x" * 100, timestamp=T)
    assert log.visible_offset == log.written_offset == 3
    assert log.append(b"after", timestamp=T) == 3
    assert [record.value for record in log.scan()] == [*FIRST, b"after"]
    assert sum(map(len, logs(log))) == state(log)["size"][0]
    assert log.verify()


def test_a_file_that_must_not_grow_costs_no_record(tmp_path: Path) -> None:
    """The system's own short writes and errors: a limit on the length of files."""
    said = run("usual", tmp_path / "log").split()
    assert said[0] == "good"
    assert int(said[1]) > 100, "nothing went the short way"
    assert int(said[2]) > 10, "the limit was never met"


def test_the_storage_of_a_log_is_one_that_the_kernel_can_write_to(log: Log) -> None:
    storage = appender_of(log).active.segment.storage
    assert isinstance(storage, file_module.FileStorage)
    assert isinstance(storage, kernel.FileFields)
