"""Stores with a wrong bit in what lies beside the logs: catalogue, groups, members, transactions; see bits.py.

Two topics, two groups, and one of these ends:

    store, closed          in order
    store, killed          a consumer was alive, and somebody was just committing an offset
    transaction, killed    committed and not placed; one of that name is done; a job has staged and not committed
    topic swap, begun      a topic was taking another one's place, and its topic.json still has its own name
    topic swap, decided    the same, and it has the other's name
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from sawlog import Log
from sawlog.batch.build import encode
from sawlog.batch.header import BatchHeader, scan
from sawlog.errors import CorruptBatch, CorruptData, CorruptFile, SawlogError, TransactionAborted
from sawlog.log.checkpoint import Checkpoint
from sawlog.storage import Directory, MemoryDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.intent import Part, Piece
from sawlog.testing import Call, FaultyDirectory

from .bits import Fixture, Flip, disk, files_of, standing_still

Share = tuple[str, int]
#: Records of a store by partition, as (offset, value).
Served = dict[Share, list[tuple[int, bytes | None]]]
Offsets = dict[str, dict[Share, int]]

_GROUPS = "groups/00000000000000000000.log"
_TIME = 1_000_000_000_000


# --- making them


def _open(directory: Directory, mode: Any = "w") -> DirectoryStore:
    return DirectoryStore.open(directory, mode, maintenance_interval_s=None)


def _fill(store: DirectoryStore) -> None:
    orders, stock = store.create_topic("orders", partitions=2), store.create_topic("stock")
    for number in range(2):
        orders.append_many([(b"o%d" % i, b"k", (), _TIME) for i in range(2)], partition=number)
    stock.append_many([(b"s%d" % i, None, (), _TIME) for i in range(2)])
    for offset, seconds in ((1, 0.0), (2, 1e9)):  # of the first commits a watermark is written, of the last ones none
        with patch("sawlog.log.shared._CHECKPOINT_S", seconds):
            store.groups.commit("billing", {("orders", 0): offset, ("orders", 1): offset, ("stock", 0): offset})
            store.groups.commit("audit", {("orders", 1): offset})


def _closed() -> dict[str, bytes]:
    directory = MemoryDirectory()
    with _open(directory) as store:
        _fill(store)
    return files_of(directory)


def _killed() -> dict[str, bytes]:
    """The process dies in the middle of a turn, so that no note records the end of the groups' log."""
    directory = MemoryDirectory()
    with _open(directory) as store:
        _fill(store)
        with store.consumer("billing", ["orders", "stock"]) as consumer:
            consumer.poll(0.0)
            with store.groups._offsets.turn():
                return files_of(directory)


def _steps(
    prepare: Callable[[DirectoryStore], object], act: Callable[[DirectoryStore], object], mark: str
) -> list[dict[str, bytes]]:
    """Return the files before every call that is made while a path with this name exists."""
    inner = MemoryDirectory()
    directory = FaultyDirectory(inner)
    steps: list[dict[str, bytes]] = []
    with _open(directory) as store:
        _fill(store)
        prepare(store)

        def note(_: Call) -> None:
            found = files_of(inner)
            if any(mark in path for path in found):
                steps.append(found)

        directory.before = note
        act(store)
        directory.before = None
    return steps


def _transact(store: DirectoryStore, number: int, value: bytes) -> None:
    with store.transaction("query", number) as tx:
        for share in (("orders", 0), ("orders", 1), ("stock", 0)):
            tx.append(share[0], value, partition=share[1], timestamp=_TIME)


def _stage(store: DirectoryStore) -> None:
    """Stage as a task of a job does before the job commits."""
    area = store._intents.staging
    file = area.file("job", "task")
    file.write(encode([(b"job", None, (), _TIME)]))
    file.sync()
    file.close()
    area.lend("job", "task")


def _transaction() -> dict[str, bytes]:
    def prepare(store: DirectoryStore) -> None:
        _transact(store, 1, b"one")
        _stage(store)

    with patch("sawlog.store.directory.transactions.transaction.INLINE_BYTES", -1):  # everything is staged in files
        steps = _steps(prepare, lambda store: _transact(store, 2, b"two"), ".intent")
    return next(files for files in steps if not any(path.endswith(".tmp") for path in files))


def _replacement() -> list[dict[str, bytes]]:
    def prepare(store: DirectoryStore) -> None:
        store.create_topic("better").append(b"b0", timestamp=_TIME)

    return _steps(prepare, lambda store: store.replace_topic("stock", "better"), ".swap")


def fixtures() -> list[Fixture]:
    """One for every kind of end."""
    catalogue = ["sawlog.json", "LOCK", "topics/*/topic.json"]
    transaction = _transaction()
    steps = _replacement()
    decided = next(files for files in steps if '"stock"' in _swap_document(files))
    return [
        Fixture("store, closed", closed := _closed(), [*catalogue, "groups/*"], _StoreJudge.of(closed)),
        Fixture("store, killed", killed := _killed(), [*catalogue, "groups/*", "members/*"], _StoreJudge.of(killed)),
        Fixture("transaction, killed", transaction, ["staging/*"], _TransactionJudge.of(transaction)),
        Fixture("topic swap, begun", steps[0], ["topics/*.swap/topic.json", "topics/stock/topic.json"], _SwapJudge()),
        Fixture("topic swap, decided", decided, ["topics/*.swap/topic.json", "topics/stock/topic.json"], _SwapJudge()),
    ]


def _swap_document(files: Mapping[str, bytes]) -> str:
    return next(data for path, data in files.items() if path.endswith(".swap/topic.json")).decode()


# --- looking


def served(store: DirectoryStore, but: str = "") -> Served:
    """All records of all topics, but of one."""
    return {
        (name, number): [(record.offset, record.value) for record in store[name].partition(number)]
        for name in store.topics()
        if name != but
        for number in range(store[name].partitions)
    }


def committed(store: DirectoryStore) -> Offsets:
    """All committed offsets."""
    offsets = store.groups._offsets
    return {group: {share: each.offset for share, each in offsets.of(group).items()} for group in offsets.groups()}


def committed_in_turn(store: DirectoryStore) -> Offsets:
    """Return the committed offsets that a process sees that is about to commit."""
    with store.groups._offsets.turn():
        return committed(store)


def _of_partitions(directory: Directory, topic: str) -> list[list[tuple[int, bytes | None]]]:
    """The records of a topic without a catalogue."""
    found = directory.child("topics").child(topic)
    made = []
    for name in sorted(found.children()):
        with Log.open(found.child(name), mode="r") as log:
            made.append([(record.offset, record.value) for record in log])
    return made


def _fails(kind: type[SawlogError], name: str, call: Callable[[], object]) -> None:
    """The call raises that, and says which file it is about."""
    try:
        call()
    except kind as error:
        assert name in str(error), f"it does not say where: {error}"
    else:
        raise AssertionError(f"nobody says that {name} is damaged")


# --- catalogue, groups, members


@dataclass(frozen=True)
class _StoreJudge:
    """Of a store in which no transaction was under way."""

    served: Served
    offsets: Offsets
    #: The batches of the groups' log and what each of them says.
    batches: list[tuple[BatchHeader, list[tuple[bytes, bytes]]]]
    #: True if the last turn ended, so that its note records the end of the groups' log.
    noted: bool
    #: Position up to which the checkpoint of the groups' log proves it durable.
    watermark: int

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> _StoreJudge:
        with _open(disk(files), "r") as store:
            everything, offsets = served(store), committed(store)
        with Log.open(disk(files).child("groups"), mode="r") as log:
            batches = [
                (each, [(r.key or b"", r.value or b"") for r in log.scan(each.base_offset, each.last_offset + 1)])
                for each in scan(files[_GROUPS])
            ]
        saved = Checkpoint.decode(files["groups/checkpoint"])
        return cls(everything, offsets, batches, b"shape" in files["groups/LOCK"], saved.position)

    def __call__(self, fixture: Fixture, flip: Flip) -> str:
        if flip.path == "sawlog.json":
            return self._is_refused(fixture, flip)
        if flip.path.endswith("topic.json"):
            return self._is_one_topic(fixture, flip)
        if flip.path == _GROUPS:
            batch = next(
                n for n, (each, _) in enumerate(self.batches) if flip.position < each.position + each.size_bytes
            )
            if flip.position - self.batches[batch][0].position not in range(12, 16):
                return self._costs_commits(fixture, flip, batch)
        return self._costs_nothing(fixture, flip)

    def _is_refused(self, fixture: Fixture, flip: Flip) -> str:
        """An unreadable store is not touched; each of its logs can be read separately."""
        directory = fixture.damaged(flip)
        for mode in ("r", "w"):
            _fails(CorruptFile, "sawlog.json", lambda mode=mode: _open(directory, mode))  # type: ignore[misc]
        assert files_of(directory) == flip.of(fixture.files), "something was changed"
        for topic in ("orders", "stock"):
            assert _of_partitions(directory, topic) == [
                rows for (name, _), rows in self.served.items() if name == topic
            ]
        return "refused, logs can be read"

    def _is_one_topic(self, fixture: Fixture, flip: Flip) -> str:
        """The topic is refused, and left alone; the others are served and written to."""
        directory, topic = fixture.damaged(flip), flip.path.split("/")[1]
        other = "stock" if topic == "orders" else "orders"
        around = {share: rows for share, rows in self.served.items() if share[0] != topic}
        for mode in ("r", "w"):
            with _open(directory, mode) as store:
                assert store.topics() == ["orders", "stock"]
                _fails(CorruptFile, flip.path, lambda store=store: store.topic(topic))  # type: ignore[misc]
                assert served(store, but=topic) == around
                assert committed(store) == self.offsets
                assert [found.name for found in _iterated(store)] == [other]
        with _open(directory) as store:
            assert store[other].append(b"more", partition=0).offset == 2
            _fails(CorruptFile, flip.path, lambda: store.alter_topic(topic, partitions=7))
            _fails(CorruptFile, flip.path, lambda: store.delete_topic(topic))
            store.create_topic("new")
            store.maintain()
        assert _of_partitions(directory, topic) == [rows for share, rows in self.served.items() if share[0] == topic]
        directory.child("topics").child(topic).replace("topic.json", fixture.files[flip.path])
        with _open(directory) as store:
            expected = {**self.served, ("new", 0): []}
            expected[other, 0] = [*expected[other, 0], (2, b"more")]
            assert served(store) == expected
        return "one topic refused, the others served"

    def _replayed(self, but: int, end: int | None = None) -> Offsets:
        """The offsets, if one batch of the groups' log says nothing, or the log ends there."""
        found: Offsets = {}
        for number, (_, rows) in enumerate(self.batches[:end]):
            for key, value in rows if number != but else ():
                _, group, topic, partition = json.loads(key)
                found.setdefault(group, {})[topic, partition] = json.loads(value)["offset"]
        return found

    def _costs_commits(self, fixture: Fixture, flip: Flip, number: int) -> str:
        """The commits of one batch revert to the previous ones; the loss is reported, and nothing else changes."""
        directory, batch = fixture.damaged(flip), self.batches[number][0]
        known = batch.position < self.watermark
        around, before = self._replayed(number), self._replayed(-1, number)
        with _open(directory, "r") as store:
            wanted = around if known or self.noted else before
            assert committed(store) == wanted, f"a reader has {committed(store)}"
            assert served(store) == self.served
        with _open(directory) as store:
            found = committed_in_turn(store)
            assert found == (around if known or self.noted else before), f"a writer has {found}"
        with Log.open(directory.child("groups"), mode="r") as log:
            told = not log.verify().ok
        torn = [name for name in directory.child("groups").names() if ".torn" in name]
        assert told is not bool(torn), "damage is neither told nor kept aside, or both"
        assert bool(torn) is not (known or self.noted)
        self._commits_go_on(directory, found)
        return "cut as a torn tail, kept aside" if torn else "reported, the rest served"

    @staticmethod
    def _commits_go_on(directory: Directory, offsets: Offsets) -> None:
        with _open(directory) as store:
            store.groups.commit("third", {("stock", 0): 1})
            assert committed(store) == {**offsets, "third": {("stock", 0): 1}}
        with _open(directory, "r") as store:
            assert committed(store) == {**offsets, "third": {("stock", 0): 1}}

    def _costs_nothing(self, fixture: Fixture, flip: Flip) -> str:
        directory = fixture.damaged(flip)
        with _open(directory, "r") as store:
            assert (served(store), committed(store)) == (self.served, self.offsets)
            with suppress(SawlogError):
                store.groups.describe("billing")
            store.groups.list()
        assert files_of(directory) == flip.of(fixture.files), "a reader has changed something"
        with _open(directory) as store:
            assert (served(store), committed_in_turn(store)) == (self.served, self.offsets)
            store.groups.describe("billing")
            with store.consumer("billing", ["orders", "stock"]) as consumer:
                assert list(consumer.drain()) == []
                assert len(consumer.assignment) == 3
        self._commits_go_on(directory, self.offsets)
        return "costs nothing"


def _iterated(store: DirectoryStore) -> list[Any]:
    """The topics that an iteration gives before it raises; it has to raise in the end."""
    found = []
    try:
        for topic in store:
            found.append(topic)  # noqa: PERF402 - what came before the error is what matters
    except CorruptFile:
        return found
    raise AssertionError("an iteration passes over a damaged topic in silence")


# --- transactions


@dataclass(frozen=True)
class _TransactionJudge:
    """Of a store with a transaction that is committed and not placed: `before`; placed, it is `after`."""

    before: Served
    after: Served
    whole: Mapping[str, bytes]

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> _TransactionJudge:
        with _open(disk(files), "r") as store:
            before = served(store)
        directory = disk(files)
        with standing_still(), _open(directory) as store:
            after = served(store)
        return cls(before, after, files)

    def __call__(self, fixture: Fixture, flip: Flip) -> str:
        with standing_still():
            return self._judge(fixture, flip)

    def _judge(self, fixture: Fixture, flip: Flip) -> str:
        directory = fixture.damaged(flip)
        with _open(directory, "r") as store:
            assert served(store) == self.before
        assert files_of(directory) == flip.of(fixture.files), "a reader has changed something"
        name = flip.path.removeprefix("staging/")
        if name.endswith((".owner", ".name")):
            return self._costs_nothing(directory)
        if name.endswith(".lease"):
            self._is_lent(directory)
            return self._costs_nothing(directory)
        if name.startswith("job"):
            return self._is_not_published(directory, flip)
        good = fixture.files[flip.path]
        if name.endswith(".batches") and _is_placed_anew(good, flip):
            return self._costs_nothing(directory)
        return self._waits(directory, name, good)

    def _costs_nothing(self, directory: Directory) -> str:
        for _ in range(2):
            with _open(directory) as store:
                assert served(store) == self.after
        with _open(directory) as store:
            assert store.transaction("query", 2).replayed
            _transact(store, 3, b"three")
        return "costs nothing"

    def _is_lent(self, directory: Directory) -> None:
        """Nothing is removed on a doubt."""
        _open(directory).close()
        assert "job.task.batches" in directory.child("staging").names(), "what a job has staged was removed"

    def _is_not_published(self, directory: Directory, flip: Flip) -> str:
        """A staged batch that is damaged is not placed."""
        data = self.whole["staging/job.task.batches"]
        with _open(directory) as store:
            part = Part("stock", store["stock"].id, 0, 1, (Piece("job.task.batches", 0, len(data)),))
            try:
                store._staging.publish("job", [part])
            except (TransactionAborted, CorruptData):
                assert not _is_placed_anew(data, flip)
                assert served(store) == self.after
                return "refused, nothing placed"
            assert _is_placed_anew(data, flip), "damage was published"
            placed = served(store)
            assert placed.pop(("stock", 0)) == [*self.after["stock", 0], (len(self.after["stock", 0]), b"job")]
        return "costs nothing"

    def _waits(self, directory: Directory, name: str, good: bytes) -> str:
        """A part that cannot be placed is not placed, and an error says so; everything else is correct; once the file
        is restored, the part is placed once."""
        for _ in range(2):
            with _open(directory) as store:
                self._is_part(served(store))
                told = self._write_everywhere(store)
                assert told or name.startswith("="), "nobody says so"
        with _open(directory, "r") as store:
            self._is_part(served(store))
        directory.child("staging").replace(name, good)
        for _ in range(2):
            with _open(directory) as store:
                found = served(store)
                for share, rows in found.items():
                    mine = [row for row in rows if row[1] != b"mine"]
                    assert [value for _, value in mine] == [value for _, value in self.after[share]], f"{share}: {mine}"
                assert store.transaction("query", 2).replayed
                _transact(store, 2, b"again")
                assert served(store) == found
        return "told, and placed when it was restored"

    def _is_part(self, found: Served) -> None:
        for share, rows in found.items():
            mine = [row for row in rows if row[1] != b"mine"]
            assert [value for _, value in mine] in (
                [value for _, value in self.before[share]],
                [value for _, value in self.after[share]],
            ), f"{share} holds {mine}"

    @staticmethod
    def _write_everywhere(store: DirectoryStore) -> bool:
        """True if an error was reported."""
        told = False
        for topic, number in (("orders", 0), ("orders", 1), ("stock", 0)):
            try:
                store[topic].append(b"mine", partition=number)
            except (CorruptFile, CorruptBatch):
                told = True
        return told


def _is_placed_anew(data: bytes, flip: Flip) -> bool:
    """True for a byte that placing a staged batch overwrites (base offset and leader epoch), unless the flip makes an
    offset that no log can reach, which is refused."""
    at = 0
    while (following := at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")) <= flip.position:
        at = following
    byte = flip.position - at
    return byte in (*range(8), *range(12, 16)) and not (byte == 0 and flip.bit >= 6)


# --- replacing a topic


class _SwapJudge:
    """Of a store in which `better` was taking the place of `stock`."""

    def __call__(self, fixture: Fixture, flip: Flip) -> str:
        directory = fixture.damaged(flip)
        with _open(directory, "r") as store:
            assert "orders" in store.topics()
            assert [value for _, value in served(store, but="stock")["orders", 0]] == [b"o0", b"o1"]
        assert files_of(directory) == flip.of(fixture.files), "a reader has changed something"
        told = 0
        try:
            with _open(directory) as store:
                served(store)
        except CorruptFile as error:
            assert "topic.json" in str(error)
            told += 1
        assert told, "nobody says so"
        *parents, name = flip.path.split("/")
        found: Directory = directory
        for parent in parents:
            found = found.child(parent)
        found.replace(name, fixture.files[flip.path])
        whole = disk(fixture.files)
        with _open(directory) as store, _open(whole) as undamaged:
            assert served(store) == served(undamaged), "restored, it is not what it would have been"
        return "told, and finished when it was restored"
