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
from sawlog.log import open as opening
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
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn without appends does not end by itself."""
    monkeypatch.setattr(opening, "IDLE_S", 1000.0)


def until(condition: object) -> None:
    deadline = monotonic() + 60
    assert callable(condition)
    while not condition():
        assert monotonic() < deadline, "it did not happen within 60 s"
        sleep(0.005)


# --- one machine, two stores


@pytest.mark.usefixtures("patient")
def test_a_lock_that_somebody_waits_for_is_given_back_between_two_appends(file_place: FilePlace, first: Topic) -> None:
    second = file_place.open()["orders"]
    for number in range(3):
        assert second.append(b"second").offset == 2 * number + 1
        assert first.append(b"first").offset == 2 * number + 2
    assert values(first.scan()) == [b"first", *[b"second", b"first"] * 3]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["writer", "partition_writer"])
def test_an_open_writer_keeps_nobody_from_writing(file_place: FilePlace, first: Topic, way: str) -> None:
    writer = first.writer() if way == "writer" else first._partition_writer(0)
    writer.append(b"buffered")
    second = file_place.open()["orders"]
    assert second.append(b"second").offset == 1
    writer.flush()
    assert second.append(b"third").offset == 3
    writer.append(b"more")
    writer.close()
    assert values(second.scan()) == [b"first", b"second", b"buffered", b"third", b"more"]


def test_who_does_not_get_a_turn_in_time_has_stored_nothing(file_place: FilePlace, first: Topic) -> None:
    second = file_place.open(lock_timeout=0.3)["orders"]
    with first.partition(0)._hold():
        with pytest.raises(DirectoryLocked, match=r"timed out after 0\.3 s"):
            second.append(b"second")
        first.append(b"first")
        assert not first.partition(0)._end_turn()
    assert second.append(b"second").offset == 2
    assert values(first.scan()) == [b"first", b"first", b"second"]


def test_a_turn_does_not_end_in_the_middle_of_an_append(first: Topic) -> None:
    log = first.partition(0)
    with log._appending():
        log.append(b"one")
        assert not log._end_turn()
        log.append(b"two")
    assert log._end_turn()
    assert not log._locked


def test_a_process_that_appends_no_more_gives_its_lock_back(first: Topic) -> None:
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
    until(lambda: not any(topic.partition(number)._locked for number in range(2)))
    second = file_place.open(lock_timeout=0.1)["orders"]
    assert [second.append(b"y", partition=number).offset for number in range(2)] == [1, 0]


def test_what_other_processes_do_between_two_turns_is_known_in_the_next(file_place: FilePlace) -> None:
    """Appends, rotations, truncation, trimming and compaction."""
    config = {"durability": "os", "segment_bytes": 1000, "cleanup_policy": "compact"}
    one = file_place.open().create_topic("orders", **config)  # type: ignore[arg-type] # as documented
    two = file_place.open()["orders"]
    logs = one.partition(0), two.partition(0)
    for number in range(60):
        mine, theirs = logs[number % 2], logs[1 - number % 2]
        mine.append_many([(b"%d" % number, b"key %d" % (number % 7))])
        end = theirs.next_offset
        theirs.append(b"%d again" % number, b"key")
        assert end == theirs.next_offset - 1
        if number % 20 == 7:
            mine.truncate(mine.next_offset - 1)
        if number % 20 == 11:
            mine.compact()
        if number % 20 == 17:
            theirs.trim(theirs.lowest_offset + 5)
        offsets = [record.offset for record in one.scan()]
        assert offsets == sorted(set(offsets))
        assert values(one.scan()) == values(two.scan())
    assert logs[0].verify()


def test_nothing_is_lost_or_doubled_while_locks_are_given_back_at_any_moment(file_place: FilePlace) -> None:
    stores = [file_place.open() for _ in range(2)]
    stores[0].create_topic("orders", durability="os")
    topics = [store["orders"] for store in stores]
    ended = threading.Event()
    errors: list[BaseException] = []

    def snatch() -> None:
        while not ended.wait(0.001):
            for topic in topics:
                topic.partition(0)._end_turn()

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
