"""A log that is written in turns: by several objects here, and by real processes that die in the middle."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import DirectoryLocked, LogClosed, SyncFailed
from sawlog.log.checkpoint import TurnNote
from sawlog.log.shared import SharedLog
from sawlog.storage import Directory, FileDirectory, MemoryDirectory
from sawlog.testing import Fault, FaultyDirectory

from ..faults.seeds import repeat, seed_of_this_run
from ..processes.launch import finish, ready, run, start

SMALL = LogConfig(segment_bytes=1000)


@pytest.fixture(params=["files", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Directory]:
    made: Directory = FileDirectory(tmp_path) if request.param == "files" else MemoryDirectory()
    yield made
    made.close()


def contents(directory: Directory) -> list[bytes | None]:
    """All values, as a reader without a turn sees them."""
    with SharedLog(directory).turn() as log:
        assert log.verify()
        return [record.value for record in log.scan()]


def append(shared: SharedLog, value: bytes) -> int:
    with shared.turn() as log:
        return log.append(value)


def note(directory: Directory) -> TurnNote | None:
    return TurnNote.decode(directory.read("LOCK").partition(b"\n")[2])


# --- taking turns


def test_turns_alternate_without_losing_or_repeating_anything(directory: Directory) -> None:
    one, other = SharedLog(directory, SMALL), SharedLog(directory, SMALL)
    made = [b"%d" % number for number in range(100)]
    for number, value in enumerate(made):
        assert append((one, other, one)[number % 3], value) == number
    assert contents(directory) == made


def test_a_turn_shows_what_others_have_appended(directory: Directory) -> None:
    one, other = SharedLog(directory), SharedLog(directory)
    append(one, b"first")
    append(other, b"second")
    with one.turn() as log:
        assert [record.value for record in log.scan()] == [b"first", b"second"]
        assert log[-1].value == b"second"
        assert log.durable_offset == 2


def test_a_rotation_by_one_is_followed_by_the_other(directory: Directory) -> None:
    one, other = SharedLog(directory, SMALL), SharedLog(directory, SMALL)
    append(one, b"a" * 600)
    append(other, b"b" * 600)
    with one.turn() as log:
        assert len(log.segments) == 2
        log.append(b"c" * 600)
    with other.turn() as log:
        assert [info.base_offset for info in log.segments] == [0, 1, 2]


def test_rotations_by_one_are_followed_without_opening_the_log_again(tmp_path: Path) -> None:
    watched = FaultyDirectory(FileDirectory(tmp_path))
    one, other = SharedLog(FileDirectory(tmp_path), SMALL), SharedLog(watched, SMALL)
    append(other, b"first")
    for _ in range(5):
        append(one, b"a" * 600)
    watched.calls.clear()
    with other.turn() as log:
        looks = {call.operation for call in watched.calls}
        assert len(log.segments) == 5
        assert log.append(b"last") == 6
    assert looks <= {"exists", "size", "view", "open", "lock"}
    assert contents(watched) == [b"first", *[b"a" * 600] * 5, b"last"]


def test_a_trim_by_one_is_seen_by_the_other(directory: Directory) -> None:
    one, other = SharedLog(directory), SharedLog(directory)
    for value in (b"a", b"b", b"c"):
        append(one, value)
    append(other, b"d")
    with one.turn() as log:
        log.trim(2)
    with other.turn() as log:
        assert log.lowest_offset == 2


def test_going_on_costs_one_fsync_and_no_other_change(tmp_path: Path) -> None:
    watched = FaultyDirectory(FileDirectory(tmp_path))
    one, other = SharedLog(watched), SharedLog(watched)
    append(one, b"a")
    append(other, b"b")
    watched.calls.clear()
    append(one, b"c")  # after what another wrote
    append(one, b"d")  # after its own
    changes = [call for call in watched.calls if call.operation not in ("exists", "size", "view", "lock")]
    assert [call.operation for call in changes] == ["append", "sync", "append", "sync"]


def test_opening_behind_an_orderly_turn_replaces_no_file(tmp_path: Path) -> None:
    """Else the others would have to open theirs again, and replace it again, and so on."""
    directory = FileDirectory(tmp_path)
    first = SharedLog(directory)
    append(first, b"a")
    name = "0" * 20 + ".log"
    identity = directory.identity(name)
    left = note(directory)
    append(SharedLog(directory), b"b")
    assert directory.identity(name) == identity
    found = note(directory)
    assert left is not None
    assert found is not None
    assert found.shape == left.shape


def test_outside_its_turn_a_log_refuses_to_write(directory: Directory) -> None:
    with SharedLog(directory).turn() as log:
        log.append(b"a")
        log.append(b"b")  # through the compiled fast path, which must not remain open
    with pytest.raises(LogClosed):
        log.append(b"c")
    assert contents(directory) == [b"a", b"b"]


def test_a_turn_that_raises_is_over_and_harms_nobody(directory: Directory) -> None:
    shared = SharedLog(directory)
    append(shared, b"a")

    def fail() -> None:
        with shared.turn() as log:
            log.append(b"b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert note(directory) is not None
    append(shared, b"c")
    assert contents(directory) == [b"a", b"b", b"c"]


def test_a_timeout_names_the_process_that_has_the_turn(directory: Directory) -> None:
    append(SharedLog(directory), b"a")
    held = directory.lock("LOCK")
    with pytest.raises(DirectoryLocked) as caught, SharedLog(directory, patience_s=0.05).turn():
        pass
    assert "process" in caught.value.holder
    held.release()
    append(SharedLog(directory, patience_s=0.05), b"b")
    assert contents(directory) == [b"a", b"b"]


def test_a_closed_shared_log_can_be_used_again(directory: Directory) -> None:
    shared = SharedLog(directory)
    append(shared, b"a")
    shared.close()
    append(shared, b"b")
    assert contents(directory) == [b"a", b"b"]


# --- notes that must not be believed


def test_a_writer_without_turns_is_noticed(tmp_path: Path) -> None:
    shared = SharedLog(FileDirectory(tmp_path), SMALL)
    append(shared, b"a")
    with Log.open(tmp_path, SMALL) as log:
        log.append(b"b")
    append(shared, b"c")
    assert contents(FileDirectory(tmp_path)) == [b"a", b"b", b"c"]


def test_bytes_behind_the_note_are_recovered_not_believed(directory: Directory) -> None:
    """An old note, brought back by a power cut, beside a write that nobody synced."""
    shared = SharedLog(directory)
    append(shared, b"a")
    storage = directory.open("0" * 20 + ".log")
    storage.append(b"torn")
    storage.close()
    with shared.turn() as log:
        assert [record.value for record in log.scan()] == [b"a"]
        assert log.append(b"b") == 1
    assert contents(directory) == [b"a", b"b"]
    assert directory.read("0" * 20 + ".log.torn") == b"torn"


@pytest.mark.parametrize("damage", [b"", b"nonsense\n", b'{"shape": 1}\ncrc32c 00000000\n', b"{}\ncrc32c 8b8e5a6b\n"])
def test_a_damaged_note_costs_a_recovery_and_nothing_else(directory: Directory, damage: bytes) -> None:
    shared = SharedLog(directory)
    append(shared, b"a")
    held = directory.lock("LOCK")
    held.leave(damage)
    held.release()
    append(shared, b"b")
    assert contents(directory) == [b"a", b"b"]


def test_a_note_survives_being_written_and_read() -> None:
    made = TurnNote("shape", 1200, 8310, 1291)
    assert TurnNote.decode(made.encode()) == made
    for position in range(len(made.encode())):
        damaged = bytearray(made.encode())
        damaged[position] ^= 1
        assert TurnNote.decode(bytes(damaged)) != made


# --- failures


def test_a_failed_fsync_leaves_no_note_and_is_not_tried_again(tmp_path: Path) -> None:
    watched = FaultyDirectory(FileDirectory(tmp_path))
    shared = SharedLog(watched)
    append(shared, b"a")
    watched.arm(Fault(operations={"sync"}, names="*.log"))
    with pytest.raises(SyncFailed):
        append(shared, b"b")
    assert note(watched) is None
    watched.calls.clear()
    append(shared, b"c")
    touched = [call.name for call in watched.calls if call.operation == "create"]
    assert touched == ["0" * 20 + ".log.tmp"], "what may be lost was not written anew"
    assert contents(watched) in ([b"a", b"c"], [b"a", b"b", b"c"])


@pytest.mark.usefixtures("no_background")
@pytest.mark.sampled(1)  # 0.3 s each
@pytest.mark.parametrize("stride", [pytest.param(6, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("effect", ["nothing", "part", "all"])
@pytest.mark.parametrize("undo", [True, False])
def test_acknowledged_records_survive_a_failure_of_any_call(effect: str, undo: bool, stride: int) -> None:
    """The first turn, one that continues, one behind another's, and rotations; each call of them fails once."""
    number = 0
    chance = random.Random(seed_of_this_run())
    while True:
        number += chance.randint(1, stride)
        inner = MemoryDirectory()
        watched = FaultyDirectory(inner)
        failing, other = SharedLog(watched, SMALL), SharedLog(inner, SMALL)
        watched.arm(Fault(number=number, effect=effect, undo=undo))  # type: ignore[arg-type]
        acknowledged: list[bytes] = []
        failed = False
        for step, shared in enumerate((failing, failing, other, failing, other, failing) * 2):
            value = b"%d" % step * 300
            try:
                append(shared, value)
                acknowledged.append(value)
            except OSError:
                failed = True
        watched.disarm()
        found = contents(inner)
        assert [value for value in found if value in acknowledged] == acknowledged, f"call {number}: {watched.calls}"
        assert len(found) == len(set(found))
        if not failed and number > len(watched.calls):
            break
    assert number > 50


# --- processes


@pytest.mark.costly  # starts two processes
def test_processes_that_take_turns_lose_nothing(tmp_path: Path) -> None:
    workers = [start("consuming", "turns", tmp_path, name, 25) for name in ("a", "b")]
    for worker in workers:
        finish(worker)
    values = contents(FileDirectory(tmp_path))
    assert len(values) == 50
    for name in (b"a", b"b"):
        assert [each for each in values if each and each.startswith(name)] == [b"%s-%d" % (name, n) for n in range(25)]


def test_a_process_killed_in_its_turn_is_recovered_from(tmp_path: Path) -> None:
    shared = SharedLog(FileDirectory(tmp_path))
    append(shared, b"before")
    holder = ready(start("consuming", "hold-turn", tmp_path))
    holder.kill()
    holder.communicate()
    assert holder.returncode == -signal.SIGKILL
    assert note(FileDirectory(tmp_path)) is None
    with shared.turn() as log:
        assert [record.value for record in log.scan()] == [b"before", b"in the turn"]
        log.append(b"after")
    assert contents(FileDirectory(tmp_path)) == [b"before", b"in the turn", b"after"]


@pytest.mark.alternating
@pytest.mark.costly  # starts a process that forks one for each call
@pytest.mark.parametrize("step", [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_a_process_may_be_killed_at_any_call_of_its_turn(tmp_path: Path, step: int) -> None:
    first = 1 + seed_of_this_run() % step
    assert run("consuming", "die-in-turns", tmp_path, first, step).endswith("good\n"), repeat()


# --- damage


def test_what_was_durable_long_ago_is_not_cut_with_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody dies in a turn, so there is no note; and a bit of an early record is wrong."""
    monkeypatch.setattr("sawlog.log.shared._CHECKPOINT_S", 0.0)
    directory = MemoryDirectory()
    shared = SharedLog(directory)
    for value in (b"one", b"two", b"three"):
        append(shared, value)
    with shared.turn():
        left = MemoryDirectory()
        for name in directory.names():
            left.replace(name, directory.read(name))
    data = bytearray(left.read(f"{0:020d}.log"))
    data[80] ^= 1
    left.replace(f"{0:020d}.log", data)
    with SharedLog(left).turn() as log:
        assert log.recovery.truncated_bytes == 0
        assert [str(each) for each in log.recovery.corruption] != []
        assert [record.value for record in log.scan(2)] == [b"three"]
        assert log.append(b"four") == 3


def test_a_watermark_is_written_once_in_a_while_not_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = FaultyDirectory(MemoryDirectory())
    shared = SharedLog(directory)
    append(shared, b"one")
    monkeypatch.setattr("sawlog.log.shared._CHECKPOINT_S", 1e9)
    directory.calls.clear()
    for _ in range(5):
        append(shared, b"more")
    assert [call for call in directory.calls if call.operation == "replace"] == []
    monkeypatch.setattr("sawlog.log.shared._CHECKPOINT_S", 0.0)
    append(shared, b"more")
    assert [call.name for call in directory.calls if call.operation == "replace"] == ["checkpoint"]
