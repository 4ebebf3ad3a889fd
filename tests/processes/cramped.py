"""Run every writing operation of a store on a full disk.

    python -m tests.processes.cramped KIND DIRECTORY EVERY [OPERATION...]

KIND is the scarce resource: `bytes` (the disk under the directory is small; a ballast file fills it up to a few pages),
`files` (it has room for a few files only) or `length` (no file may grow beyond a limit, which needs no separate disk).
Each operation is tried with nothing left, then with a little more, and so on, until it succeeds: with EVERY 1 the first
twenty in the smallest steps, with EVERY 0 in growing steps from the start. With EVERY `few` it is tried with nothing
left, and with a little if it writes several files.

Each time, the operation succeeds or raises a sawlog error; everything acknowledged before can be read and is intact; a
failed operation has no effect or its whole effect; when there is room again, the store takes the operation, or reports
that it has failed and takes it after it was reopened.

The output counts the failed tries of each operation.
"""

from __future__ import annotations

import itertools
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sawlog.batch.build import encode
from sawlog.errors import SawlogError, TransactionPending
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.commits import INLINE_BYTES
from sawlog.store.directory.transactions.intent import Part
from sawlog.store.directory.transactions.staging_directory import StagingDirectory

from . import content
from .launch import say

PAGE_BYTES = 4096


# --- scarce resources


class Bytes:
    """Limit the free pages of a small disk."""

    def __init__(self, directory: Path) -> None:
        self.ballast = directory / "ballast"

    def impose(self, left: int) -> None:
        with self.ballast.open("wb", buffering=0) as file:
            with suppress(OSError):
                while True:
                    file.write(bytes(PAGE_BYTES))
            file.truncate(max(file.tell() - left * PAGE_BYTES, 0))

    def lift(self) -> None:
        self.ballast.unlink(missing_ok=True)


class Files:
    """Limit the number of new files on a small disk."""

    def __init__(self, directory: Path) -> None:
        self.ballast = directory / "ballast"

    def impose(self, left: int) -> None:
        self.ballast.mkdir()
        made = []
        with suppress(OSError):
            for number in itertools.count():
                (self.ballast / str(number)).touch()
                made.append(self.ballast / str(number))
        for path in made[len(made) - left :]:
            path.unlink()

    def lift(self) -> None:
        shutil.rmtree(self.ballast, ignore_errors=True)


class Length:
    """Limit the length of files, in steps of 100 bytes."""

    def __init__(self, directory: Path) -> None:
        pass

    def impose(self, left: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (left * 100, resource.RLIM_INFINITY))

    def lift(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


LIMITS = {"bytes": Bytes, "files": Files, "length": Length}


# --- what is done


class Doing:
    """A store, its acknowledged contents, and the operations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = self.open()
        #: Names of records by (topic, partition), as acknowledged.
        self.told: dict[tuple[str, int], list[str]] = {}
        self.topics = {"orders": 2, "stock": 1, "keyed": 1}
        self.committed = 0
        #: Committed records that the next open of the store appends.
        self.pending: list[tuple[tuple[str, int], str]] = []
        self.numbers = itertools.count()
        self.store.create_topic("orders", partitions=2, segment_bytes=2000)
        self.store.create_topic("stock")
        self.store.create_topic("keyed", cleanup_policy="compact", segment_bytes=1000)
        for topic, partitions in self.topics.items():
            for partition in range(partitions):
                for _ in range(4):
                    self.append(topic, partition)
        for _ in range(4):
            self.append("orders", 0)
            self.store["orders"].partition(0).seal()
        self.commit()

    def open(self) -> DirectoryStore:
        return DirectoryStore.open(self.path, maintenance_interval_s=None)

    def value(self, size: int = 300) -> tuple[str, bytes]:
        name = f"r{next(self.numbers)}"
        return name, content.make(name, size)

    def append(self, topic: str, partition: int, size: int = 300) -> None:
        name, value = self.value(size)
        key = name.encode() if topic == "keyed" else None
        self.store[topic].append(value, key=key, partition=partition)
        self.told.setdefault((topic, partition), []).append(name)

    # Each of these does one thing and, if it returns, has recorded the expected contents.

    def append_to_stock(self) -> None:
        self.append("stock", 0, 6000)

    def rotate(self) -> None:
        for _ in range(6):
            self.append("orders", 0, 900)

    def create(self) -> None:
        name = f"new{next(self.numbers)}"
        self.store.create_topic(name, partitions=2)
        self.topics[name] = 2

    def alter(self) -> None:
        self.store.alter_topic("orders", partitions=self.topics["orders"] + 2, retention_ms=10**12)
        self.topics["orders"] += 2

    def delete(self) -> None:
        self.store.delete_topic("stock")
        self.topics.pop("stock")
        self.told.pop(("stock", 0))

    def replace(self) -> None:
        self.store.replace_topic("orders", "stock")
        self.topics["orders"] = self.topics.pop("stock")
        self.told = {key: names for key, names in self.told.items() if key[0] != "orders"}
        self.told["orders", 0] = self.told.pop(("stock", 0))

    def commit(self) -> None:
        self.store.groups.commit("billing", {("orders", 0): self.committed + 1, ("orders", 1): self.committed + 1})
        self.committed += 1

    def consume(self) -> None:
        with self.store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
            for partition in range(2):
                consumer.seek("orders", partition, self.committed + 1)
            consumer.commit()
            self.committed += 1

    def small_transaction(self) -> None:
        self.transact(1)

    def large_transaction(self) -> None:
        self.transact(INLINE_BYTES // 900 + 1)

    def transact(self, count: int) -> None:
        places = [("orders", 0), ("orders", 1), ("stock", 0)]
        made = [(place, *self.value()) for place in places for _ in range(count)]
        try:
            with self.store.transaction() as tx:
                for (topic, partition), _, value in made:
                    tx.append(topic, value, partition=partition)
        except TransactionPending:
            self.pending = [(place, name) for place, name, _ in made]
            raise
        self.note((place, name) for place, name, _ in made)

    def note(self, made: Iterable[tuple[tuple[str, int], str]]) -> None:
        for place, name in made:
            self.told.setdefault(place, []).append(name)

    def publish(self) -> None:
        area = StagingDirectory(self.store._directory)
        stage = f"stage{next(self.numbers)}"
        try:
            area.lend(stage, "task")
            file = area.file(stage, "task")
            topic = self.store["orders"]
            made = [[self.value() for _ in range(2)] for _ in range(2)]
            parts = [Part("orders", topic.id, n, 2, (file.write(encode([v for _, v in made[n]])),)) for n in range(2)]
            file.sync()
            file.close()
            placed = [(("orders", n), name) for n in range(2) for name, _ in made[n]]
            try:
                self.store._staging.publish(stage, parts)
            except TransactionPending:
                self.pending = placed
                raise
            self.note(placed)
        finally:
            area.close()

    def compact(self) -> None:
        self.store["keyed"].partition(0).compact()

    # Sealed segments are there already; these two rewrite all of them.

    def merge(self) -> None:
        self.store["orders"].partition(0)._merge_segments()

    def recompress(self) -> None:
        self.store["orders"].partition(0)._recompress("zstd")

    def seal(self) -> None:
        self.store["orders"].partition(1).seal()

    def trim(self) -> None:
        log = self.store["orders"].partition(0)
        log.trim(log.lowest_offset + 1)
        self.told["orders", 0].pop(0)

    def truncate(self) -> None:
        log = self.store["orders"].partition(1)
        log.truncate(log.next_offset - 1)
        self.told["orders", 1].pop()

    def close(self) -> None:
        """Close the store; closing may raise."""
        self.store.close()

    def reopen(self) -> None:
        """Open the store again, as after the death of its process."""
        self.store.close()
        for path in self.path.glob("topics/*/partition-*/checkpoint"):
            path.unlink()
        for path in self.path.glob("topics/*/partition-*/*.index"):
            path.unlink()
        self.store = self.open()
        self.append("stock", 0)

    # --- whether all is well

    def found(self, store: DirectoryStore, topic: str, partition: int) -> list[str]:
        return [content.name_of(record.value) for record in store[topic].partition(partition).scan()]

    def check(self, store: DirectoryStore, what: str) -> None:
        """Check that all acknowledged records can be read and every log verifies."""
        for (topic, partition), names in self.told.items():
            found = self.found(store, topic, partition)
            assert found[: len(names)] == names, f"{what}: {topic} {partition}: {found[:20]} instead of {names[:20]}"
            report = store[topic].partition(partition).verify()
            assert report, f"{what}: {report}"
        assert set(self.topics) <= set(store.topics()), f"{what}: there is {store.topics()}"
        rows = store.groups.describe("billing").rows
        assert {row.committed for row in rows if row.partition < 2 and row.topic == "orders"} <= {
            *(None, self.committed, self.committed + 1)
        }, f"{what}: {rows} instead of {self.committed}"


OPERATIONS = (
    *("append_to_stock", "rotate", "create", "alter", "delete", "replace", "commit", "consume", "small_transaction"),
    *("large_transaction", "publish", "compact", "merge", "recompress", "seal", "trim", "truncate", "close", "reopen"),
)
#: These write several files, and can fail between two of them.
STEPWISE = frozenset({"rotate", "alter", "small_transaction", "large_transaction", "publish", "compact"})
#: Operations that cannot be repeated.
ONCE = frozenset({"delete", "replace", "close"})
#: After a failure of these, either outcome is allowed; `settle` finds out which one it is.
DOUBTFUL = frozenset({"delete", "replace", "truncate"})


# --- trying


@contextmanager
def too_little(limit: Bytes | Files | Length, left: int) -> Iterator[None]:
    limit.impose(left)
    try:
        yield
    finally:
        limit.lift()


def attempt(call: Callable[[], None]) -> SawlogError | None:
    try:
        call()
    except SawlogError as error:
        return error
    return None


def snapshot(doing: Doing) -> tuple[object, ...]:
    return {key: list(names) for key, names in doing.told.items()}, dict(doing.topics), doing.committed


def try_once(place: Path, kind: str, operation: str, left: int) -> bool:
    """Return True if the resource ran out."""
    shutil.rmtree(place, ignore_errors=True)
    doing = Doing(place)
    limit = LIMITS[kind](place.parent)
    call: Callable[[], None] = getattr(doing, operation)
    told = f"{operation} with {left} {kind} left"
    with too_little(limit, left):
        failed = attempt(call)
        with DirectoryStore.open(place, "r") as reader:
            if failed is None or operation not in DOUBTFUL:
                doing.check(reader, f"{told}, while there is too little")
        if left % 2:
            attempt(doing.store.close)  # may raise that there was no space for its last notes
    if left % 2 or doing.pending or operation in ("close", "reopen"):
        attempt(doing.store.close)
        doing.store = doing.open()
        doing.note(doing.pending)
    if operation in DOUBTFUL and failed is not None:
        settle(doing, operation)
    doing.check(doing.store, f"{told}, when there is room again")
    go_on(doing, operation, told)
    doing.store.close()
    with doing.open() as again:
        doing.check(again, f"{told}, opened anew")
        again["orders"].append(b"after all", partition=0)
    return failed is not None


def settle(doing: Doing, operation: str) -> None:
    """Find out whether a failed operation took effect, completely or not at all."""
    topics = doing.store.topics()
    if operation == "delete" and "stock" not in topics:
        doing.topics.pop("stock")
        doing.told.pop(("stock", 0))
    elif operation == "replace" and "stock" not in topics:
        doing.topics["orders"] = doing.topics.pop("stock")
        doing.told = {key: names for key, names in doing.told.items() if key[0] != "orders"}
        doing.told["orders", 0] = doing.told.pop(("stock", 0))
    elif operation == "truncate":
        # A truncation that stops half-way fails the log; the next open may find the records or not.
        if not doing.store["orders"].partition(1)._is_writable:
            attempt(doing.store.close)
            doing.store = doing.open()
        if len(doing.found(doing.store, "orders", 1)) < len(doing.told["orders", 1]):
            doing.told["orders", 1].pop()


def go_on(doing: Doing, operation: str, told: str) -> None:
    """Repeat the operation with free space, with the same store or a reopened one."""
    if operation in ONCE:
        doing.append("orders", 0)
        return
    again = attempt(getattr(doing, operation))
    if again is None:
        return
    attempt(doing.store.close)
    doing.store = doing.open()
    again = attempt(getattr(doing, operation))
    assert again is None, f"{told}: and it does not go on when there is room again: {again!r}"


def lefts(every: str, operation: str) -> Iterator[int]:
    """Yield amounts of the resource: in small steps ("1"), in larger ones ("0"), or nothing and, for some operations, a
    little ("few")."""
    if every == "1":
        return itertools.chain(range(20), (int(20 * 1.3**n) for n in range(60)))
    if every == "few":
        return iter((0, 7) if operation in STEPWISE else (0,))
    return iter(sorted({int(1.4**n) - 1 for n in range(40)}))


def main(kind: str, directory: str, every: str, *operations: str) -> None:
    for operation in operations or OPERATIONS:
        met = 0
        for left in lefts(every, operation):
            try:
                if try_once(Path(directory) / "store", kind, operation, left):
                    met += 1
                    continue
            except BaseException as error:
                LIMITS[kind](Path(directory)).lift()
                error.add_note(f"{operation} with {left} {kind} left")
                raise
            if left > 2 or every == "1":
                break
        say(f"{operation} {met}")
    say("good")


if __name__ == "__main__":
    main(*sys.argv[1:])
