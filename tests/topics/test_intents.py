"""Staging and intents, as used by a program that stages in many processes and commits in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sawlog.batch.build import encode
from sawlog.clock import now_ms
from sawlog.errors import CorruptData, CorruptFile, InvalidConfig, TransactionAborted
from sawlog.log.log import Log
from sawlog.storage import Lock, MemoryDirectory, checksummed
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions import staging_directory
from sawlog.store.directory.transactions.intent import Intent, Part, Piece
from sawlog.store.directory.transactions.pending import PendingTransactions
from sawlog.store.directory.transactions.staging_directory import StagedTransaction, StagingDirectory

from .stores import copied, values


class Driver:
    """A store with one topic of two partitions, and its staging area."""

    def __init__(self) -> None:
        self.directory = MemoryDirectory()
        self.store = DirectoryStore.open(self.directory, maintenance_interval_s=None)
        self.topic = self.store.create_topic("orders", partitions=2)
        self.intents = self.store._intents

    def part(self, partition: int, count: int, *pieces: Piece) -> Part:
        return Part("orders", self.topic.id, partition, count, pieces)

    def log(self, part: Part) -> Log:
        return self.topic.partition(part.partition)

    def commit(self, stage: StagedTransaction, *parts: Part) -> Intent:
        return self.intents.commit(stage, parts, self.log)

    def found(self) -> list[list[bytes | None]]:
        return [values(self.topic.partition(number).scan()) for number in range(2)]

    def staged(self) -> list[str]:
        return self.directory.child("staging").names()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.store.close()


def batch(*records: bytes) -> bytes:
    return encode(records)


def written(directory: MemoryDirectory, id_: str, *parts: Part) -> Intent:
    """Write an intent for empty logs, like a process that dies right afterwards."""
    intent = Intent(id_, tuple(replace(part, offset=0) for part in parts))
    checksummed.store(directory.child("staging"), intent.file, intent.fields())
    return intent


def test_files_of_many_tasks_are_placed_in_the_order_given(driver: Driver) -> None:
    stage = driver.intents.staging.begin()
    pieces = []
    for task in range(3):
        file = StagingDirectory(driver.directory).file(stage.id, f"task-{task}")  # as another process does
        pieces.append((file.write(batch(b"%d a" % task, b"%d b" % task)), file.write(batch(b"%d c" % task))))
        file.sync()
        file.close()
    intent = driver.commit(
        stage,
        *[driver.part(0, 2, two) for two, _ in reversed(pieces)],
        *[driver.part(1, 1, one) for _, one in pieces],
    )
    stage.end()
    assert driver.found() == [[b"2 a", b"2 b", b"1 a", b"1 b", b"0 a", b"0 b"], [b"0 c", b"1 c", b"2 c"]]
    assert [part.offsets for part in intent.parts] == [range(6), range(3)]
    assert driver.staged() == []


def test_one_piece_may_hold_many_batches(driver: Driver) -> None:
    stage = driver.intents.staging.begin()
    file = stage.file()
    data = b"".join(batch(b"%d" % number) for number in range(50))
    driver.commit(stage, driver.part(1, 50, file.write(data)))
    assert driver.found()[1] == [b"%d" % number for number in range(50)]


def test_a_large_part_is_placed_a_few_megabytes_at_a_time(driver: Driver) -> None:
    stage = driver.intents.staging.begin()
    file = stage.file()
    pieces = [file.write(batch(b"%d" % number + b"." * 1_000_000)) for number in range(20)]
    driver.commit(stage, driver.part(0, 20, *pieces))
    assert [value[:2].strip(b".") for value in driver.found()[0] if value] == [b"%d" % n for n in range(20)]


def test_what_a_stage_holds_is_swept_when_its_process_is_gone_and_not_before(driver: Driver) -> None:
    stage = driver.intents.staging.begin()
    driver.intents.staging.file(stage.id, "task-1").write(batch(b"v"))
    before = driver.staged()
    driver.intents.staging.sweep()
    assert driver.staged() == before
    dead = copied(driver.directory)
    StagingDirectory(dead).sweep()
    assert dead.child("staging").names() == []


def test_what_an_intent_needs_is_not_swept(driver: Driver) -> None:
    stage = driver.intents.staging.begin()
    piece = stage.file().write(batch(b"v"))
    left = copied(driver.directory)
    intent = written(left, stage.id, driver.part(0, 1, piece))
    StagingDirectory(left).sweep()
    assert {piece.file, intent.file} <= set(left.child("staging").names())
    with DirectoryStore.open(left, maintenance_interval_s=None) as store:
        assert values(store["orders"].scan()) == [b"v"]
        assert left.child("staging").names() == []


def test_a_stage_whose_lock_was_swept_while_it_was_taken_takes_another() -> None:
    class Swept(MemoryDirectory):
        """A lock whose first file is deleted by a concurrent sweep."""

        times = 1

        def lock(self, name: str, *, alone: bool = True) -> Lock:
            held = super().lock(name, alone=alone)
            if self.times:
                self.times -= 1
                self.remove(name)
            return held

    directory = Swept()
    stage = StagedTransaction(directory)
    assert directory.names() == [f"{stage.id}.owner"]


def test_a_stage_that_is_ended_leaves_nothing(driver: Driver) -> None:
    stage = driver.intents.staging.begin()
    stage.file("a").write(batch(b"v"))
    driver.intents.staging.file(stage.id, "b").write(batch(b"v"))
    stage.end()
    assert driver.staged() == []
    assert not stage.held


@pytest.mark.parametrize("label", ["", "a/b", "..", "a.b", "ä"])
def test_a_label_is_a_plain_word(driver: Driver, label: str) -> None:
    with pytest.raises(InvalidConfig, match="label"):
        driver.intents.staging.file("0b5c", label)


@pytest.mark.parametrize("damage", ["a bit", "cut short", "counted wrongly", "missing"])
def test_damaged_batches_are_not_committed(driver: Driver, damage: str) -> None:
    stage = driver.intents.staging.begin()
    good = stage.file("good").write(batch(b"good"))
    data = bytearray(batch(b"one", b"two"))
    count = 2
    if damage == "a bit":
        data[70] ^= 1
    elif damage == "cut short":
        del data[-5:]
    elif damage == "counted wrongly":
        count = 3
    bad = stage.file("bad").write(data)
    if damage == "missing":
        driver.directory.child("staging").remove(bad.file)
    with pytest.raises(TransactionAborted) as caught:
        driver.commit(stage, driver.part(0, 1, good), driver.part(1, count, bad))
    assert damage == "missing" or isinstance(caught.value.__cause__, CorruptData)
    assert driver.found() == [[], []]
    assert driver.intents.pending.intents() == []


def test_batches_that_are_damaged_after_the_commit_stop_their_partition_and_no_other() -> None:
    driver = Driver()
    stage = driver.intents.staging.begin()
    good, bad = stage.file("good").write(batch(b"good")), stage.file("bad").write(batch(b"bad"))
    parts = (driver.part(0, 1, good), driver.part(1, 1, bad))
    left = copied(driver.directory)
    staging = left.child("staging")
    intent = written(left, stage.id, *parts)
    staging.replace(bad.file, staging.read(bad.file)[:-1] + b"\xff")
    with DirectoryStore.open(left, maintenance_interval_s=None) as store:
        assert store["orders"].append(b"more", partition=0).offset == 1
        with pytest.raises(CorruptData):
            store["orders"].append(b"more", partition=1)
        assert values(store["orders"].scan()) == [b"good", b"more"]
        assert [n for n, _ in PendingTransactions(StagingDirectory(left)).unmarked(intent)] == [1]


def test_an_intent_comes_back_as_it_was_written() -> None:
    part = Part("orders", "0b5c", 3, 7, (Piece("a.0.batches", 0, 100), Piece("a.1.batches", 5, 6)), 41)
    for intent in (Intent("a", (part,)), Intent("b", (), "query", 5)):
        assert Intent.from_fields(intent.fields(), "here") == intent


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"id": "a", "name": None, "sequence": None, "parts": [{"topic": "x"}]},
        {"id": "a", "name": None, "sequence": None, "parts": 5},
    ],
)
def test_something_else_is_no_intent(fields: dict[str, object]) -> None:
    with pytest.raises(CorruptFile, match="here"):
        Intent.from_fields(fields, "here")


def test_staged_files_with_an_unreadable_lease_are_kept_for_a_day(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = driver.intents.staging.file("job", "task")
    staged.write(batch(b"one"))
    staged.close()
    driver.intents.staging.lend("job", "task")
    driver.directory.child("staging").replace("job.task.lease", b"{}")
    driver.intents.staging.sweep()
    assert "job.task.batches" in driver.staged()
    tomorrow = now_ms() + 25 * 3600 * 1000
    monkeypatch.setattr(staging_directory, "now_ms", lambda: tomorrow)
    driver.intents.staging.sweep()
    assert driver.staged() == []
