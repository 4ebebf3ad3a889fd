"""Readers in other processes, beside a writer that rotates, trims, truncates and is killed.

A reader never sees a torn record, a gap or a repeat; it continues when the writer is gone and another one has recovered
the log; and it changes nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import LogNotFound, OffsetOutOfRange
from sawlog.log import recovery
from sawlog.log.followed_segments import FollowedSegmentSet

from ...processes import content
from ...processes.launch import PATIENCE_S, finish, ready, start
from ...processes.reading import Reading

SEED = int(os.environ.get("SAWLOG_SEED", "7"))


def summaries(*readers: subprocess.Popen[str]) -> list[dict[str, int]]:
    return [json.loads(finish(reader).splitlines()[-1]) for reader in readers]


@pytest.mark.costly  # starts three processes
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("writing", "reading"),
    [
        pytest.param((), (), id="rotation"),
        pytest.param(("trim",), ("fall",), id="trimming", marks=pytest.mark.slow),  # truncation trims as well
        pytest.param(("truncate", "trim"), ("fall", "cut"), id="truncation"),
    ],
)
def test_two_readers_follow_a_writer(tmp_path: Path, writing: tuple[str, ...], reading: tuple[str, ...]) -> None:
    writer = start("writing", tmp_path, SEED, 60, *writing)
    readers = [
        start("reading", tmp_path, SEED, "follow", *reading),
        start("reading", tmp_path, SEED + 1, *reading),
    ]
    digest = finish(writer).splitlines()[-1]
    for summary in summaries(*readers):
        assert summary["digest"] == digest, "the reader ended with another log than the writer"
        assert summary["seen"] > 0
        if not reading:
            assert summary["seen"] == summary["position"]
        assert summary["descriptors"] < 40, "a descriptor for each segment that went by"


@pytest.mark.alternating
@pytest.mark.costly  # starts four processes
@pytest.mark.parametrize(
    ("how", "kills"), [("copy", 1), *(pytest.param(how, 4, marks=pytest.mark.slow) for how in ("copy", "split"))]
)
def test_readers_survive_that_the_writer_is_killed_and_replaced(tmp_path: Path, how: str, kills: int) -> None:
    rng = random.Random(SEED)
    # Readers wait for the log to appear; a writer that waited for them would write a lot meanwhile.
    readers = [start("reading", tmp_path, SEED, "follow"), start("reading", tmp_path, SEED + 1)]
    writer = ready(start("writing", tmp_path, SEED, 0, "wait", how))
    for reader in readers:
        ready(reader)
    for kill in range(kills):
        time.sleep(rng.uniform(0.0, 0.1))
        writer.kill()
        writer.communicate()
        assert writer.returncode == -signal.SIGKILL
        for reader in readers:
            if reader.poll() is not None:
                finish(reader)
        last = kill == kills - 1
        steps = ("50",) if last else ("0", "wait")
        writer = start("writing", tmp_path, SEED + kill + 1, *steps, how)
        if not last:
            ready(writer)
    digest = finish(writer).splitlines()[-1]
    for summary in summaries(*readers):
        assert summary["digest"] == digest
        assert summary["seen"] == summary["position"], "a reader that started at 0 saw every record once"


def abandoned(directory: Path, config: LogConfig) -> Log:
    """A log whose process died: half of the active segment durable and noted, the rest written."""
    log = Log.open(directory, config.with_(durability="os", checkpoint_interval_ms=3_600_000))
    for offset in range(3000):
        log.append(content.make(f"{offset}.0", 500))
        if offset == 1500:
            log.sync()
            log._access.appender.checkpoints.save(clean=False)  # type: ignore[union-attr]
    log._access.appender.held.release()  # type: ignore[union-attr]  # as the kernel does for a dead process
    return log


@pytest.mark.alternating
@pytest.mark.parametrize("small_bytes", [recovery.SMALL_BYTES, 1], ids=["replaced", "split"])
@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_a_scan_goes_on_when_recovery_changes_the_file_under_it(
    tmp_path: Path, small_bytes: int, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SMALL_BYTES", small_bytes)
    dead = abandoned(tmp_path, LogConfig(segment_bytes=8 << 20))
    (segment,) = tmp_path.glob("*.log")
    if torn:
        with segment.open("ab") as file:
            file.write(segment.read_bytes()[:300])
    reader = Log.open(tmp_path, mode="r")
    scan, arrow, follow = reader.scan(), reader.scan_arrow(batch_rows=100), reader.follow(timeout=0)
    assert (next(scan).offset, next(arrow).num_rows, next(follow).offset) == (0, 100, 0)
    inode = segment.stat().st_ino
    with Log.open(tmp_path) as log:
        assert not log.recovery.clean
        if small_bytes == 1:
            assert [each.base_offset for each in log.segments] == [0, 1501]
        else:
            assert segment.stat().st_ino != inode
        assert log.append(content.make("3000.0")) == 3000
        assert [record.offset for record in scan] == list(range(1, 3000))
        assert sum(batch.num_rows for batch in arrow) == 2900
        assert [record.offset for record in follow] == list(range(1, 3001))
        for offset in (0, 1500, 1501, 2999, 3000):
            assert content.name_of(reader.read(offset).value) == f"{offset}.0"
    reader.close()
    dead._access.segments.close()


def test_a_reader_believes_only_whole_batches(tmp_path: Path) -> None:
    """While a batch is being written, a reader may find parts of it in any order, and zeros for the rest."""
    log = Log.open(tmp_path, LogConfig(durability="os"))
    log.append(content.make("0"))
    (path,) = tmp_path.glob("*.log")
    end = path.stat().st_size
    log.append(content.make("1", 500))
    whole = path.read_bytes()
    log.append(content.make("2", 500))
    with Log.open(tmp_path, mode="r") as reader:
        assert reader.next_offset == 3
    (tmp_path / "visible").unlink()  # or else it would say that they had been read
    batch = whole[end:]
    states = [batch[:size] for size in (1, 60, 61, 62, 300, len(batch) - 1)]
    states += [batch[:size] + bytes(len(batch) - size) for size in (0, 20, 61, 300, len(batch) - 1)]
    states += [bytes(size) + batch[size:] for size in (1, 17, 61, 300)]
    states += [batch[:300] + b"\xff" + batch[301:]]
    for state in states:
        if state == batch:  # zeros in place of zeros
            continue
        path.write_bytes(whole[:end] + state)
        with Log.open(tmp_path, mode="r") as reader:
            following = reader.follow(timeout=0)
            assert [record.offset for record in following] == [0]
            assert reader.next_offset == 1
            with pytest.raises(OffsetOutOfRange):
                reader.read(1)
            assert reader.fetch(0, 10_000).raw == whole[:end]
            with path.open("r+b") as file:  # the writer gets on
                file.write(whole)
            assert [content.name_of(record.value) for record in reader.follow(timeout=0)] == ["0", "1"]
            assert content.name_of(reader.read(1).value) == "1"
    log._access.appender.held.release()  # type: ignore[union-attr]  # its writes are lost
    log._access.segments.close()


def test_a_follower_sees_a_new_record_within_a_few_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = FollowedSegmentSet.refresh
    looks = itertools.count(1)
    latest = [0]
    looked = threading.Event()

    def counted(self: FollowedSegmentSet) -> bool:
        latest[0] = next(looks)
        looked.set()
        return refresh(self)

    writer = Log.open(tmp_path, LogConfig(segment_bytes=1000))
    writer.append(content.make("0"))
    reader = Log.open(tmp_path, mode="r")
    monkeypatch.setattr(FollowedSegmentSet, "refresh", counted)
    following = reader.follow(timeout=PATIENCE_S)
    assert next(following).offset == 0

    def append(offset: int, appended_at: list[int]) -> None:
        for _ in range(4):  # the follower has looked in vain several times by now
            looked.clear()
            assert looked.wait(PATIENCE_S)
        writer.append(content.make(str(offset), 300))
        appended_at.append(latest[0])

    for offset in range(1, 20):
        appended_at: list[int] = []
        thread = threading.Thread(target=append, args=(offset, appended_at))
        thread.start()
        assert next(following).offset == offset
        found_at = latest[0]
        thread.join(PATIENCE_S)
        assert found_at <= appended_at[0] + 3
    writer.close()
    reader.close()


@pytest.mark.parametrize("how", ["scan", "follow", "read"])
def test_a_reader_that_was_overtaken_by_a_trim_says_so(tmp_path: Path, how: str) -> None:
    writer = Log.open(tmp_path, LogConfig(segment_bytes=2000, durability="os"))
    for offset in range(100):
        writer.append(content.make(f"{offset}.0", 100))
    reader = Log.open(tmp_path, mode="r")
    records = {
        "scan": reader.scan,
        "follow": lambda: reader.follow(timeout=0),
        "read": lambda: map(reader.read, range(100)),
    }[how]()
    seen = [next(records).offset]
    writer.trim(90)
    with pytest.raises(OffsetOutOfRange) as caught:
        seen.extend(record.offset for record in records)
    assert seen == list(range(len(seen)))
    assert len(seen) < 90
    assert caught.value.lowest == 90
    assert [record.offset for record in reader.scan()] == list(range(90, 100))
    writer.close()
    reader.close()


def test_a_follower_whose_records_were_truncated_says_so(tmp_path: Path) -> None:
    writer = Log.open(tmp_path, LogConfig(segment_bytes=2000, durability="os"))
    for offset in range(100):
        writer.append(content.make(f"{offset}.0", 100))
    reader = Log.open(tmp_path, mode="r")
    following = reader.follow(timeout=PATIENCE_S)
    assert [next(following).offset for _ in range(100)] == list(range(100))
    writer.truncate(50)
    with pytest.raises(OffsetOutOfRange) as caught:
        next(following)
    assert (caught.value.requested, caught.value.next) == (100, 50)
    writer.append(content.make("50.1"))
    assert content.name_of(reader.read(50).value) == "50.1"
    assert reader.next_offset == 51
    writer.close()
    reader.close()


def state_of(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything about the files that a reader could change."""
    found = {}
    for path in sorted(directory.iterdir()):
        status = path.stat()
        found[path.name] = (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode, path.read_bytes())
    return found


@pytest.mark.parametrize("damage", ["none", "indexes", "torn", "checkpoint", "leftovers", "unclean"])
def test_a_reader_changes_nothing(tmp_path: Path, damage: str) -> None:
    with Log.open(tmp_path, LogConfig(segment_bytes=2000, durability="os")) as log:
        for offset in range(50):
            log.append(content.make(f"{offset}.0", 100))
        if damage == "unclean":
            checkpoint = (tmp_path / "checkpoint").read_bytes()
        log.append(content.make("end"))
    segments = sorted(tmp_path.glob("*.log"))
    if damage == "indexes":
        for path in [*tmp_path.glob("*.index"), *tmp_path.glob("*.timeindex")][::2]:
            path.unlink()
    elif damage == "torn":
        with segments[-1].open("ab") as file:
            file.write(segments[0].read_bytes()[:90])
    elif damage == "checkpoint":
        (tmp_path / "checkpoint").unlink()
    elif damage == "leftovers":
        for suffix in (".log.tmp", ".log.deleted", ".index.tmp"):
            (tmp_path / f"{0:020d}{suffix}").write_bytes(b"x")
    elif damage == "unclean":
        (tmp_path / "checkpoint").write_bytes(checkpoint)
    before = state_of(tmp_path)
    with Log.open(tmp_path, mode="r") as reader:
        reading = Reading(reader, SEED, ())
        while not reading.ended:
            reading.step()
        assert reading.seen == 51
        assert reader.verify()
    assert state_of(tmp_path) == before


def test_a_reader_does_not_collect_descriptors(tmp_path: Path) -> None:
    """Neither for segments that were rotated away nor for a segment whose index is missing."""
    config = LogConfig(segment_bytes=2000, durability="os")
    with Log.open(tmp_path, config) as log:
        log.append(bytes(500))
        with Log.open(tmp_path, LogConfig(max_mapped_segments=2), mode="r") as reader:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(100):
                log.append(bytes(500))
                assert reader.read(reader.next_offset - 1).value == bytes(500)
            assert len(os.listdir("/proc/self/fd")) <= before + 4 + len(reader.segments) // 30
    next(tmp_path.glob("*.index")).unlink()
    with Log.open(tmp_path, mode="r") as reader:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            assert reader.next_offset == 101
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_opening_what_is_not_there_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for name in ("empty", "missing"):
        for _ in range(3):
            with pytest.raises(LogNotFound):
                Log.open(tmp_path / name, mode="r")
    assert len(os.listdir("/proc/self/fd")) == before
