"""Several processes append to one topic: taking and releasing the locks."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from sawlog import Log, Topic
from sawlog.errors import DirectoryLocked, InvalidConfig
from sawlog.store.directory import lock_leases
from sawlog.store.directory.store import DirectoryStore

from ..processes.launch import finish, ready, start
from ..processes.turning import TURN
from .stores import FilePlace, values


@pytest.fixture
def first(file_place: FilePlace) -> Topic:
    """A topic whose only partition the first of two stores has locked by an append."""
    topic = file_place.open().create_topic("orders")
    topic.append(b"first")
    return topic


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process takes requests of others: they have to take turns."""

    def refuse(*_: object) -> None:
        raise OSError(1, "no sockets here")

    monkeypatch.setattr("sawlog.store.directory.forwarding.listener.listen", refuse)
    monkeypatch.setattr(lock_leases, "_IDLE_S", 1000.0)


def until(condition: object) -> None:
    deadline = monotonic() + 60
    assert callable(condition)
    while not condition():
        assert monotonic() < deadline, "it did not happen within 60 s"
        sleep(0.005)


# --- one machine, two stores


@pytest.mark.usefixtures("deaf")
def test_a_wanted_lock_is_released_between_two_appends(file_place: FilePlace, first: Topic) -> None:
    second = file_place.open()["orders"]
    for number in range(3):
        assert second.append(b"second").offset == 2 * number + 1
        assert first.append(b"first").offset == 2 * number + 2
    assert values(first.scan()) == [b"first", *[b"second", b"first"] * 3]


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("way", ["writer", "partition_writer", "log"])
def test_a_lock_that_is_in_use_or_was_taken_by_the_log_is_kept(file_place: FilePlace, first: Topic, way: str) -> None:
    if way == "log":
        first.partition(0)._release()
        first.partition(0).append(b"first")
    else:
        writer = first.writer() if way == "writer" else first._partition_writer(0)
        writer.append(b"buffered")
    second = file_place.open(lock_timeout=0.3)["orders"]
    with pytest.raises(DirectoryLocked, match=r"timed out after 0\.3 s"):
        second.append(b"second")
    assert first.partition(0)._locked
    if way != "log":
        writer.close()
        assert second.append(b"second").offset == 2
        assert values(second.scan()) == [b"first", b"buffered", b"second"]


@pytest.mark.usefixtures("deaf")
def test_a_transaction_asks_for_a_lock(file_place: FilePlace, first: Topic) -> None:
    second = file_place.open()
    with second.transaction() as tx:
        tx.append("orders", b"second")
    assert values(second["orders"].scan()) == [b"first", b"second"]


def test_a_wanted_lock_is_released_at_the_end_of_the_call_that_uses_it(first: Topic) -> None:
    """A process that appends without a pause uses the partition whenever the background task looks."""
    partitions, log = first._partitions, first.partition(0)
    with partitions.using(0):
        log._want_lock()
        partitions._leases._release_due()
        assert log._locked
    assert not log._locked


@pytest.mark.usefixtures("deaf")
def test_a_process_that_waits_for_a_lock_gets_it_before_the_one_that_has_released_it(
    file_place: FilePlace, first: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_leases, "_YIELD_S", 60.0)
    first.partition(0)._want_lock()
    assert first._partitions.give_back(0)
    again = threading.Thread(target=first.append, args=(b"first",))
    again.start()
    until(lambda: not first._partitions._leases._yielding)
    file_place.open()["orders"].append(b"second")
    again.join()
    assert values(first.scan()) == [b"first", b"second", b"first"]


def test_a_lock_that_is_released_during_an_append_is_taken_as_a_lease_again(
    first: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no other process could write until the store is closed."""
    append, given = Log.append, []

    def released_before(log: Log, *arguments: object) -> int:
        given.append(first._partitions.give_back(0))
        return append(log, *arguments)  # type: ignore[arg-type] # passed on as they are

    monkeypatch.setattr(Log, "append", released_before)
    first.append(b"second")
    assert given == [True]
    assert first._partitions.give_back(0)


def test_a_lock_that_is_taken_while_its_last_lease_ends_is_leased(
    first: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background task finds a lease whose lock is gone, and forgets it after the next append has leased a lock."""
    log, held = first.partition(0), lock_leases._Lease.is_held.fget
    assert held is not None
    log._release()

    def append_meanwhile(lease: lock_leases._Lease) -> bool:
        found: bool = held(lease)
        monkeypatch.undo()
        first.append_many([b"second"])
        return found

    monkeypatch.setattr(lock_leases._Lease, "is_held", property(append_meanwhile))
    first._partitions._leases._release_due()
    assert log._locked
    assert first._partitions.give_back(0)


def test_a_lock_is_not_given_back_in_the_middle_of_a_forwarded_append(
    file_place: FilePlace, first: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    place = Log._place_batches

    def place_meanwhile(log: Log, *arguments: object, **options: object) -> range:
        given.append(first._partitions.give_back(0))
        return place(log, *arguments, **options)  # type: ignore[arg-type] # passed on as they are

    monkeypatch.setattr(Log, "_place_batches", place_meanwhile)
    file_place.open()["orders"].append(b"second")
    assert given == [False]


def test_a_lock_is_not_given_back_in_the_middle_of_a_call(first: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    writer, many = Log.writer, Log.append_many

    def writer_meanwhile(log: Log, *arguments: object) -> object:
        given.append(first._partitions.give_back(0))
        return writer(log, *arguments)  # type: ignore[arg-type] # passed on as they are

    def many_meanwhile(log: Log, *arguments: object) -> object:
        given.append(first._partitions.give_back(0))
        return many(log, *arguments)  # type: ignore[arg-type] # passed on as they are

    monkeypatch.setattr(Log, "writer", writer_meanwhile)
    monkeypatch.setattr(Log, "append_many", many_meanwhile)
    with first.writer() as opened:
        opened.append(b"one")
    first.append_many([b"two"])
    assert given == [False, False]
    assert first._partitions.give_back(0)


def test_a_process_that_appends_no_more_gives_its_lock_back(first: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first.partition(0)._locked
    monkeypatch.setattr(lock_leases, "_IDLE_S", 0.0)
    until(lambda: not first.partition(0)._locked)
    with Log.open(first.partition(0).path) as log:
        assert log.recovery.clean
        assert log.append(b"by the log itself") == 1
    assert first.append(b"again").offset == 2
    assert first.partition(0).leader_epoch == 0


def test_a_lock_that_a_transaction_or_trim_has_taken_is_given_back_too(file_place: FilePlace) -> None:
    store = file_place.open()
    topic = store.create_topic("orders", partitions=2)
    with store.transaction() as tx:
        tx.append("orders", b"x", partition=0)
    topic.trim({1: 0})
    assert [topic.partition(number)._locked for number in range(2)] == [True, True]
    assert topic._partitions.give_back(0)
    assert topic._partitions.give_back(1)
    topic.partition(0).append(b"by the log")
    with store.transaction() as tx:
        tx.append("orders", b"y", partition=0)
    assert not topic._partitions.give_back(0)


def test_the_lock_follows_the_process_that_writes(
    file_place: FilePlace, first: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_leases, "_STREAK_S", 0.0)
    second = file_place.open()["orders"]
    for _ in range(lock_leases._STREAK_COUNT):
        second.append(b"second")
    assert first.partition(0)._locked
    second.append(b"second")
    assert second.partition(0)._locked
    assert not first.partition(0)._locked
    assert first.append(b"first").offset == lock_leases._STREAK_COUNT + 2
    assert second.partition(0)._locked


def test_the_lock_stays_with_a_process_that_writes_too(
    file_place: FilePlace, first: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_leases, "_STREAK_S", 0.0)
    second = file_place.open()["orders"]
    for number in range(2 * lock_leases._STREAK_COUNT):
        second.append(b"second")
        if number % (lock_leases._STREAK_COUNT - 1) == 0:
            first.append(b"first")
    assert first.partition(0)._locked


def test_nothing_is_lost_or_doubled_while_locks_are_given_back_at_any_moment(file_place: FilePlace) -> None:
    stores = [file_place.open() for _ in range(2)]
    stores[0].create_topic("orders", durability="os")
    topics = [store["orders"] for store in stores]
    ended = threading.Event()
    errors: list[BaseException] = []

    def snatch() -> None:
        while not ended.wait(0.001):
            for topic in topics:
                topic._partitions.give_back(0)

    def write(topic: Topic, tag: int) -> None:
        try:
            for number in range(150):
                topic.append(b"%d one %d" % (tag, number))
                topic.append_many([b"%d many %d" % (tag, number)])
                if number % 50 == 0:
                    with topic.writer() as writer:
                        writer.append(b"%d writer %d" % (tag, number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(topics[tag % 2], tag)) for tag in range(3)]
    snatcher = threading.Thread(target=snatch)
    for thread in (*threads, snatcher):
        thread.start()
    for thread in threads:
        thread.join(60)
    ended.set()
    snatcher.join(60)
    assert errors == []
    found = values(topics[0].scan())
    assert Counter(found).most_common(1)[0][1] == 1
    assert len(found) == 3 * (300 + 3)
    for tag in range(3):  # and in order
        mine = [value for value in found if value is not None and value.startswith(b"%d one" % tag)]
        assert mine == [b"%d one %d" % (tag, number) for number in range(150)]


@pytest.mark.parametrize("wrong", [-1, "soon", None, True])
def test_a_timeout_is_a_number_of_seconds(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(InvalidConfig, match="lock_timeout"):
        DirectoryStore.open(tmp_path / "store", lock_timeout=wrong)  # type: ignore[arg-type] # that is the point


# --- processes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with DirectoryStore.open(tmp_path / "store", maintenance_interval_s=None) as store:
        store.create_topic("orders", durability="os")
    return tmp_path / "store"


@pytest.fixture
def begun() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended, whatever happens."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(60)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a line that was not sent yet
                    pipe.close()


def acknowledged(output: str, tag: str) -> list[bytes]:
    return [b"%s %d %d" % (tag.encode(), int(turn), each) for turn in output.split() for each in range(TURN)]


def of(found: list[bytes | None], tag: str) -> list[bytes]:
    return [value for value in found if value is not None and value.startswith(tag.encode())]


@pytest.mark.slow
def test_an_append_waits_for_a_process_that_has_the_log_open_and_opening_does_not(
    path: Path, begun: list[subprocess.Popen[str]]
) -> None:
    partition = path / "topics" / "orders" / "partition-0"
    begun.append(ready(start("turning", "open", partition)))
    with DirectoryStore.open(path, lock_timeout=0.2) as store, pytest.raises(DirectoryLocked, match=f"{begun[0].pid}"):
        store["orders"].append(b"ours")
    with pytest.raises(DirectoryLocked):
        Log.open(partition)
    with DirectoryStore.open(path) as store:
        ending = threading.Timer(0.2, finish, (begun[0],))  # closes its input
        ending.start()
        assert store["orders"].append(b"ours").offset == 1
        ending.join()
        assert values(store["orders"].scan()) == [b"theirs", b"ours"]


@pytest.mark.costly  # two interpreters
def test_two_processes_append_to_one_topic_at_the_same_time(path: Path, begun: list[subprocess.Popen[str]]) -> None:
    tags = "one", "two"
    begun += [start("turning", "append", path, "orders", tag, 60) for tag in tags]
    for process in begun:
        ready(process)
    for process in begun:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [finish(process) for process in begun]
    with DirectoryStore.open(path, "r") as store:
        found = values(store["orders"].scan())
    assert len(found) == 2 * 60 * TURN
    for tag, output in zip(tags, outputs, strict=True):
        assert of(found, tag) == acknowledged(output, tag)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1, 20, 90, 200])
def test_what_is_acknowledged_is_there_once_although_the_other_process_is_killed(
    path: Path, begun: list[subprocess.Popen[str]], after: int
) -> None:
    begun += [start("turning", "append", path, "orders", tag, 1000) for tag in ("one", "two")]
    for process in begun:
        ready(process)
    for process in begun:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    victim, other = begun
    assert victim.stdout is not None
    told = "".join(victim.stdout.readline() for _ in range(after))
    victim.kill()
    told += victim.stdout.read()
    output = finish(other)
    with DirectoryStore.open(path) as store:
        found = values(store["orders"].scan())
    assert of(found, "two") == acknowledged(output, "two")
    whole = told[: told.rfind("\n") + 1]
    sure = acknowledged(whole, "one")
    assert of(found, "one") in (sure, [*sure, *acknowledged(str(len(whole.split())), "one")])
