"""Fixed bugs that no crash, error or flipped bit reveals. Each has a test here, or one that `promised` lists, which
finds the bug when it is planted again."""

from __future__ import annotations

import os
from errno import ENOSPC
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import pytest

from sawlog import Log, LogConfig, Producer
from sawlog.batch.build import encode
from sawlog.errors import InvalidConfig, LogFailed, StorageFull, StreamAborted
from sawlog.log import appender as append
from sawlog.log import rewrite
from sawlog.log.active_segment import ActiveSegment
from sawlog.log.appender import AppendBlock, Appender
from sawlog.log.files import CHECKPOINT, LEADER_EPOCHS, PRODUCERS
from sawlog.log.index import SegmentIndex
from sawlog.log.producers import ProducerState
from sawlog.log.segment import Segment
from sawlog.storage import FileDirectory, Storage
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Fault
from sawlog.testing.faulty import Call

from ..topics.stores import tree
from .disk import FaultyStorage


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_maintenance_leaves_no_partition_open(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path, maintenance_interval_s=None) as store:
        topic = store.create_topic("many", 24)
        before = _descriptors()
        store.maintain()
        assert _descriptors() <= before + 2
        assert not topic._partitions.logs, "maintenance has opened partitions that stay open"


@pytest.mark.parametrize("work", ["_merge_segments", "compact"])
def test_no_more_segments_are_open_at_once_than_may_be(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "MAX_SEGMENTS", 4)
    runs: list[int] = []
    swap = rewrite._swap

    def noted(log: Any, made: rewrite.Rewritten, cuts: int | None) -> bool:
        runs.append(len(made.run))
        return swap(log, made, cuts)

    monkeypatch.setattr(rewrite, "_swap", noted)
    with Log.in_memory(LogConfig(segment_bytes=10_000)) as log:
        for number in range(20):
            log.append(b"%d" % number, b"key %d" % (number % 3))
            log.seal()
        getattr(log, work)()
        found = [record.value for record in log]
        assert found == [b"%d" % number for number in (range(20) if work == "_merge_segments" else (17, 18, 19))]
    assert runs
    assert max(runs) <= 4, f"{max(runs)} segments at once"


@pytest.mark.parametrize("name", [None, "job"])
def test_a_transaction_stays_whole_if_its_process_dies_and_then_the_power_is_cut(name: str | None) -> None:
    """The next process may find an intent whose name is in the cache and not yet on the disk."""
    disk = FaultyStorage(seed=1)
    with DirectoryStore.open(disk, maintenance_interval_s=None) as store:
        store.create_topic("orders", 2)
        store["orders"].append(b"first", partition=0)
        store["orders"].append(b"first", partition=1)
        died: list[FaultyStorage] = []
        disk.watch = lambda step: died.append(disk.process_dies())
        with store.transaction(name, None if name is None else 1) as tx:
            tx.append("orders", b"mine", partition=0)
            tx.append("orders", b"mine", partition=1)
        disk.watch = None
    cut: list[FaultyStorage] = []
    for dead in died:
        dead.watch = lambda step, dead=dead: cut.append(dead.crash("lose"))  # type: ignore[misc]
        DirectoryStore.open(dead, maintenance_interval_s=None).close()
        dead.watch = None
    assert len(cut) > 20
    # Most of these disks are the same: a cut loses everything since the last sync.
    for left in {str(sorted(tree(each).items())): each for each in cut}.values():
        with DirectoryStore.open(left, maintenance_interval_s=None) as store:
            found = {len(store["orders"].partition(number)) for number in (0, 1)}
            assert found in ({1}, {2}), "a part of the transaction is there"


def begun_and_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise an interrupt right after the next segment is created."""
    create = ActiveSegment._create

    def interrupted(self: ActiveSegment, offset: int) -> Any:
        create(self, offset)
        raise KeyboardInterrupt

    monkeypatch.setattr(ActiveSegment, "_create", interrupted)


def test_what_is_acknowledged_after_an_interrupted_rotation_survives_a_power_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file of the abandoned segment must not return next to the old segment, which continues."""
    disk = FaultyStorage(seed=1)
    log = Log.open(disk.plain, LogConfig(checkpoint_interval_ms=3_600_000))
    log.append(b"before")
    begun_and_interrupted(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        log.seal()
    monkeypatch.undo()
    log.append(b"acknowledged")
    with Log.open(disk.crash("lose").plain) as again:
        assert [record.value for record in again] == [b"before", b"acknowledged"]


@pytest.mark.parametrize("after", ["closing", "a power cut"])
def test_a_rotation_whose_rollback_is_interrupted_too_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """The empty file of the next segment must be gone before the old one grows beyond its first offset."""
    disk = FaultyStorage(seed=1)
    log = Log.open(disk.plain, LogConfig(checkpoint_interval_ms=3_600_000))
    log.append(b"before")

    def again(*_: Any) -> None:
        raise KeyboardInterrupt

    begun_and_interrupted(monkeypatch)
    monkeypatch.setattr(log._access.appender.active._directory, "remove", again, raising=True)  # type: ignore[union-attr]
    with pytest.raises(KeyboardInterrupt):
        log.seal()
    monkeypatch.undo()
    for value in (b"one", b"two"):
        log.append(value)
    log.seal()
    log.append(b"three")
    assert [record.value for record in log] == [b"before", b"one", b"two", b"three"]
    if after == "closing":
        log.close()
    with Log.open(disk.plain if after == "closing" else disk.crash("lose").plain) as reopened:
        assert reopened.verify()
        assert [record.value for record in reopened] == [b"before", b"one", b"two", b"three"]


def test_a_truncation_that_is_interrupted_twice_ends_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second interrupt comes while the log stops writing because of the first one."""
    disk = FaultyStorage(seed=1)
    log = Log.open(disk.plain)
    log.append_many([b"0", b"1", b"2"])
    appender = log._access.appender
    assert appender is not None

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(appender.durability), "fail", interrupted)
        patched.setattr("sawlog.log.appender.truncate_segment", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.truncate(1)
    for change in (lambda: log.append(b"x"), lambda: log.append_many([b"x"]), log.seal, lambda: log.trim(1)):
        with pytest.raises(LogFailed):
            change()
    log.close()
    with Log.open(disk.plain) as again:
        assert again.verify()
        assert [record.value for record in again] == [b"0"]


@pytest.mark.parametrize("how", ["seal", "close"])
def test_bytes_that_an_interrupted_append_has_left_are_cut_off_before_the_segment_ends(how: str) -> None:
    disk = FaultyStorage(seed=1)
    log = Log.open(disk.plain, LogConfig(durability="os"))
    log.append(b"0")
    segment = log._access.segments.active
    segment.storage.append(segment.storage.read(0, segment.size))  # complete, but with an offset that exists already
    if how == "seal":
        log.seal()
        log.append(b"1")
    log.close()
    with Log.open(disk.plain) as again:
        assert again.verify(), str(again.verify())
        assert [record.value for record in again] == ([b"0", b"1"] if how == "seal" else [b"0"])


def test_a_compaction_whose_rollback_is_interrupted_too_ends_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is ready to replace segments must be gone before these segments change."""
    disk = FaultyStorage(seed=1)
    log = Log.open(disk.plain)
    for value in (b"old", b"new"):
        log.append(value, b"key")
        log.seal()
    directory = log._access.directory
    rename, remove = directory.rename, directory.remove

    def renamed(old: str, new: str) -> None:
        rename(old, new)
        if new.endswith(".swap"):
            raise KeyboardInterrupt

    def removed(name: str) -> None:
        if name.endswith(".swap"):
            raise KeyboardInterrupt
        remove(name)

    monkeypatch.setattr(directory, "rename", renamed)
    monkeypatch.setattr(directory, "remove", removed)
    with pytest.raises(KeyboardInterrupt):
        log.compact()
    monkeypatch.undo()
    with pytest.raises(LogFailed):
        log.append(b"into a log whose files are not known")
    log.close()
    with Log.open(disk.plain) as again:
        assert again.verify()
        assert [record.value for record in again][-1] == b"new"


def test_records_that_are_not_visible_supersede_nothing() -> None:
    """A part of an unfinished append may already be sealed, and may still be rolled back."""
    with Log.in_memory() as log:
        for value in (b"old", b"new", b"newest"):
            log.append(value, b"key")
            log.seal()
        log._access.segments.visible_offset = 1
        log.compact()
        assert [record.value for record in log] == [b"old"]
        log._access.segments.visible_offset = 3
        log.compact()
        assert [record.value for record in log] == [b"newest"]


@pytest.mark.parametrize("mode", ["w", "r", "a"])
def test_a_store_is_not_opened_as_a_log(tmp_path: Path, mode: Literal["w", "r", "a"]) -> None:
    DirectoryStore.open(tmp_path).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InvalidConfig, match="is a store"):
        Log.open(tmp_path, mode=mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def _opened_before_renaming(monkeypatch: pytest.MonkeyPatch, suffix: str, path: str) -> list[str]:
    """Open the store right before such a file gets its name. tests/topics/test_sweeping.py does the same with another
    process, which does not have the planted bug."""
    real, seen = os.rename, list[str]()

    def rename(old: str, new: str, **more: Any) -> None:
        if old.endswith(suffix):
            seen.append(old)
            DirectoryStore.open(path, maintenance_interval_s=None).close()
        real(old, new, **more)

    monkeypatch.setattr(os, "rename", rename)
    return seen


def test_an_intent_that_is_being_written_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DirectoryStore.open(tmp_path, maintenance_interval_s=None) as store:
        store.create_topic("t", 2)
        seen = _opened_before_renaming(monkeypatch, ".intent.tmp", store.path)
        with store.transaction() as made:
            made.append("t", b"a", partition=0)
            made.append("t", b"b", partition=1)
        assert len(seen) == 1
        assert sorted(record.value or b"" for record in store["t"].scan()) == [b"a", b"b"]


def test_a_lease_that_is_being_written_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DirectoryStore.open(tmp_path, maintenance_interval_s=None) as store:
        store.create_topic("t", 1)
        seen = _opened_before_renaming(monkeypatch, ".lease.tmp", store.path)
        name = store._staging.put("job", encode([b"x"]))
        assert seen
        names = os.listdir(f"{store.path}/staging")
        assert name in names
        assert any(each.endswith(".lease") for each in names)


def test_a_released_lock_is_free_although_copies_of_its_descriptor_are_open(tmp_path: Path) -> None:
    """Another thread that is just starting a process has copies of all descriptors."""
    directory = FileDirectory(tmp_path)
    lock: Any = directory.lock("LOCK")
    copies = [os.dup(fd) for fd in lock._fds]
    try:
        lock.release()
        directory.lock("LOCK").release()
    finally:
        for each in copies:
            os.close(each)
        directory.close()


def test_the_name_of_a_directory_that_was_there_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "there" / "before"
    place.mkdir(parents=True)
    real, synced = os.fsync, set[str]()

    def noted(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    Log.open(place).close()
    assert {str(place.parent), str(place)} <= synced


def _refuse(disk: FaultyStorage, *kinds: tuple[str, str, int]) -> None:
    """Make the disk full for these: (operation, names, number of calls that still succeed)."""
    counts = dict.fromkeys(kinds, 0)

    def full(call: Call) -> None:
        for kind in kinds:
            operation, names, allowed = kind
            if call.operation == operation and fnmatchcase(call.name, names):
                counts[kind] += 1
                if counts[kind] > allowed:
                    raise StorageFull(ENOSPC, "no space left", call.name)

    disk.before = full


@pytest.mark.slow
def test_what_a_merge_has_replaced_survives_a_death_before_its_name_was_durable() -> None:
    """The next open completes the swap. It must not delete the old files before the new name is durable."""
    disk = FaultyStorage(seed=1)
    log = Log.open(disk, LogConfig(checkpoint_interval_ms=3_600_000))
    for number in range(4):
        log.append(b"%d" % number)
        log.seal()
    died: list[FaultyStorage] = []
    disk.watch = lambda step: died.append(disk.process_dies())
    log._merge_segments()
    disk.watch = None
    cut: list[FaultyStorage] = []
    for dead in died:
        dead.watch = lambda step, dead=dead: cut.extend(  # type: ignore[misc]
            dead.crash("reorder", seed) for seed in range(8)
        )
        Log.open(dead).close()
        dead.watch = None
    assert len(cut) > 100
    for left in cut:
        with Log.open(left) as again:
            assert [record.value for record in again] == [b"0", b"1", b"2", b"3"]
            assert again.recovery, str(again.recovery)


@pytest.mark.parametrize("survives", [0, 1, 2])
def test_a_trim_that_a_full_disk_refuses_leaves_a_log_that_starts_where_its_files_do(survives: int) -> None:
    """The new log start cannot be recorded, so the files below it must not be deleted to make room."""
    disk = FaultyStorage(seed=1)
    log = Log.open(disk, LogConfig(checkpoint_interval_ms=3_600_000))
    for number in range(4):
        log.append(b"%d" % number)
        log.seal()
    _refuse(disk, ("replace", CHECKPOINT, 0), ("remove", "*.log", survives))
    with pytest.raises(StorageFull):
        log.trim(3)
    disk.before = None
    assert log.lowest_offset == survives
    assert [record.value for record in log] == [b"%d" % number for number in range(survives, 4)]
    with Log.open(disk.process_dies()) as again:
        assert again.lowest_offset == survives


def test_a_producer_is_known_by_what_it_wrote_after_a_truncation_on_a_full_disk() -> None:
    """The producers file describes the log before the truncation and must not be used afterwards."""
    disk = FaultyStorage(seed=1)
    log = Log.open(disk, LogConfig(durability="os", checkpoint_interval_ms=3_600_000))
    log.append_many([b"before"] * 6)
    log.seal()
    disk.arm(Fault(1, ENOSPC, {"replace"}, PRODUCERS, forever=True, effect="nothing"))
    log.truncate(1)
    assert disk.failed
    placed = log.append_many([b"mine"] * 2, producer=Producer(7, 0, 0))
    log.append_many([b"others"] * 9)
    log.seal()  # the file is of an earlier segment, so that nothing but its epoch tells that it is old
    log.append(b"another")
    with Log.open(disk.process_dies()) as again:
        assert again.append_many([b"mine"] * 2, producer=Producer(7, 0, 0)) == placed == range(1, 3)


def test_a_producer_whose_append_was_taken_back_on_a_full_disk_may_send_it_again() -> None:
    disk = FaultyStorage(seed=1)
    log = Log.open(disk, LogConfig(segment_bytes=400, durability="os", checkpoint_interval_ms=3_600_000))
    log.append(b"before")
    raw = b"".join(encode([b"x" * 250], producer=Producer(7, 0, number)) for number in range(3))
    _refuse(disk, ("append", "*.log", 2), ("replace", PRODUCERS, 2))
    with pytest.raises(StorageFull):
        log.append_batches(raw)
    disk.before = None
    assert log.next_offset == 1
    disk.arm(Fault(1, ENOSPC, {"replace"}, PRODUCERS, forever=True, effect="nothing"))
    for _ in range(4):
        log.append(b"others")
    log.seal()  # the file is of an earlier segment
    log.append(b"others")
    with Log.open(disk.process_dies()) as again:
        assert again.append_batches(raw) == range(6, 9)


@pytest.mark.parametrize("placed", [1, 2], ids=["the active segment", "several segments"])
def test_the_next_append_finishes_an_interrupted_rollback(monkeypatch: pytest.MonkeyPatch, placed: int) -> None:
    """Each batch fills a segment, so two batches are rolled back by a truncation across segments."""
    with Log.in_memory(LogConfig(segment_bytes=400)) as log:
        log.append(b"before")
        place, interrupts = Appender._place_run, list[str]()

        def failing(self: Appender, data: Any, rows: Any, start: int) -> int:
            if start == placed:
                raise KeyboardInterrupt
            return place(self, data, rows, start)

        def interrupted(*_: Any, **__: Any) -> Any:
            interrupts.append("in the rollback")
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Appender, "_place_run", failing)
            patched.setattr(append, "find_cut_point", interrupted)
            patched.setattr(ActiveSegment, "roll_back", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append_batches(b"".join(encode([b"x" * 250]) for _ in range(3)))
        assert interrupts == ["in the rollback"]
        assert log.append(b"after") == 1
        assert [record.value for record in log] == [b"before", b"after"]


def test_an_append_whose_rollback_is_interrupted_leaves_no_entry_in_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    with Log.in_memory(LogConfig(index_interval_bytes=1)) as log:
        log.append(b"before")
        interrupts = iter([True, False])

        def interrupted(self: ProducerState, *_: Any) -> None:
            raise KeyboardInterrupt

        def rebuilding(self: Segment, storage: Storage) -> SegmentIndex:
            if next(interrupts):
                raise KeyboardInterrupt
            return rebuild(self, storage)

        rebuild = Segment.rebuild_index
        monkeypatch.setattr(Segment, "rebuild_index", rebuilding)
        with monkeypatch.context() as patched:
            patched.setattr(ProducerState, "note", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append_many([b"one", b"two", b"three"], producer=Producer(1, 0, 0))
        log.append(b"after")
        assert log.verify(), str(log.verify())


def test_maintenance_ends_an_append_whose_end_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block of that append still holds the lock."""
    with Log.in_memory() as log:
        log.append(b"before")

        def interrupted(*_: Any) -> Any:
            monkeypatch.undo()
            raise KeyboardInterrupt

        def work() -> None:
            monkeypatch.setattr(AppendBlock, "__exit__", interrupted)
            with kept:
                log.append(b"not kept")

        kept = log._appending()
        with pytest.raises(KeyboardInterrupt):
            work()
        assert log._scrub().ok
        assert [record.value for record in log] == [b"before"]


def test_an_epoch_that_only_readers_know_of_is_not_given_again(tmp_path: Path) -> None:
    """The files with the epochs are lost, and no batch of the last epoch is left, but a reader has a position in it."""
    log = Log.open(tmp_path)
    log.append_many([b"a", b"b"])
    log.truncate(1)
    log.truncate(0)
    position = log.position()
    assert position == (0, 2)
    log._access.appender.held.release()  # type: ignore[union-attr]  # as if it had been killed
    for name in (CHECKPOINT, LEADER_EPOCHS):
        (tmp_path / name).unlink()
    with Log.open(tmp_path) as again:
        assert again.leader_epoch > position[1]


def test_bytes_that_were_cut_off_before_a_death_do_not_come_back_after_a_clean_close() -> None:
    """The next process finds the file with its correct length, which is not yet durable."""
    disk = FaultyStorage(seed=1)
    with Log.open(disk) as log:
        log.append(b"kept")
    log = Log.open(disk, LogConfig(durability="os", checkpoint_interval_ms=3_600_000))
    died: list[FaultyStorage] = []
    disk.watch = lambda step: died.append(disk.process_dies())
    with pytest.raises(StreamAborted):
        log.append_stream(b"x" * (2**20 // (2 - number)) for number in range(3))
    disk.watch = None
    for dead in died:
        Log.open(dead).close()
        for seed in range(8):
            with Log.open(dead.crash("reorder", seed)) as again:
                assert again.recovery, str(again.recovery)
                assert [record.value for record in again] == [b"kept"]
