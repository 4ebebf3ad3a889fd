"""`python -m tests.faults missing`: delete every file of a log and of a store, or cut it anywhere. Every tool must
report a loss.

Each log ends in one of three ways, which decide what else records its end:

    closed       the checkpoint
    killed       the published visible end, because the machine was not restarted
    restarted    only the watermark; the records above it may be gone without a report

Every segment is deleted, and cut to nothing, between all batches, and within each of them; other files are deleted, and
cut in the middle. `_Log.expected` and `STORE` say what each loss may cost. For lost records, a reader returns
everything else and raises `CorruptBatch` in their place; `verify`, the quick check of `doctor`, and the next writer
report them; the writer continues after the recorded end; and `verify` still reports them when the writer has closed the
log. If nothing is lost, nothing is reported.
"""

from __future__ import annotations

import argparse
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from sawlog import Log, Store
from sawlog.batch.header import BatchHeader, scan
from sawlog.errors import CorruptBatch, CorruptFile, SawlogError
from sawlog.log.checkpoint import Checkpoint
from sawlog.log.files import CHECKPOINT, VISIBLE
from sawlog.log.recovery_report import Where
from sawlog.log.verify import missing_ends
from sawlog.storage import Directory, MemoryDirectory

from . import rotten_logs, rotten_stores
from .bits import Violation, files_of, standing_still, written
from .report import Tally, say

#: Published values by path of the directory.
Told = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Loss:
    """A file that is deleted (size -1) or cut."""

    path: str
    size: int

    def __str__(self) -> str:
        return f"{self.path}:{self.size}"

    @classmethod
    def parse(cls, text: str) -> Loss:
        """From the text that was printed."""
        path, _, size = text.rpartition(":")
        return cls(path, int(size))

    def of(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """The files after it."""
        if self.path.endswith("/"):
            return {path: data for path, data in files.items() if not path.startswith(self.path)}
        left = {path: data for path, data in files.items() if path != self.path}
        return left if self.size < 0 else {**left, self.path: files[self.path][: self.size]}


@dataclass(frozen=True)
class Fixture:
    """Files, the values published next to them, and the judge of a loss."""

    name: str
    files: Mapping[str, bytes]
    told: Told
    judge: Callable[[Fixture, Loss], str]

    def losses(self) -> Iterator[Loss]:
        """Everything that can go missing."""
        for path, data in sorted(self.files.items()):
            yield Loss(path, -1)
            for size in _sizes(path, data):
                yield Loss(path, size)

    def damaged(self, loss: Loss) -> MemoryDirectory:
        """Return the directory after the loss."""
        made = written(MemoryDirectory(), loss.of(self.files))
        for path, numbers in self.told.items():
            if loss.path != f"{path}/{VISIBLE}".lstrip("/") and not (
                loss.path.endswith("/") and f"{path}/".startswith(loss.path)
            ):
                _publish(made, path, numbers)
        return made

    def try_loss(self, loss: Loss) -> str:
        """The verdict; `Violation` if something is not as expected, or raises a foreign error."""
        try:
            return self.judge(self, loss)
        except Exception as error:
            what = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
            line = f"python -m tests.faults missing --fixture '{self.name}' --loss '{loss}'"
            raise Violation(f"{type(error).__name__}: {what}\n  {line}") from error


def _sizes(path: str, data: bytes) -> Iterator[int]:
    if not path.endswith(".log"):
        yield from {0, len(data) // 2} if data else ()
        return
    for batch in scan(data):
        yield from (batch.position, batch.position + batch.size_bytes // 2)


def _publish(root: Directory, path: str, numbers: tuple[int, int]) -> None:
    directory = root
    for name in filter(None, path.split("/")):
        directory = directory.child(name)
    assert isinstance(directory, MemoryDirectory)
    published = directory.published(VISIBLE, create=True)
    assert published is not None
    published.store(*numbers)


# --- logs


@dataclass(frozen=True)
class _Log:
    """The judge of a log."""

    whole: rotten_logs.Whole
    #: The first offset that is not trimmed, and the end that something records.
    lowest: int
    end: int

    def __call__(self, fixture: Fixture, loss: Loss) -> str:
        if loss.path == CHECKPOINT:
            return self._costs_nothing(fixture, loss, told=True)
        if not loss.path.endswith(".log"):
            return self._costs_nothing(fixture, loss)
        gone = self._gone(loss, fixture.files)
        if not gone:
            return self._costs_nothing(fixture, loss)
        if min(gone) >= self.end:
            return self._ends_earlier(fixture, loss, min(gone))
        return self._is_lost(fixture, loss, gone)

    def _gone(self, loss: Loss, files: Mapping[str, bytes]) -> set[int]:
        """The offsets that are missing afterwards."""
        batches: list[BatchHeader] = scan(files[loss.path])
        gone = [each for each in batches if each.position + each.size_bytes > loss.size]
        return {at for each in gone for at in range(each.base_offset, each.last_offset + 1) if at >= self.lowest}

    def _wanted(self) -> set[int]:
        return {offset for offset in self.whole.records if offset >= self.lowest}

    def _is_lost(self, fixture: Fixture, loss: Loss, gone: set[int]) -> str:
        whole, directory = self.whole, fixture.damaged(loss)
        # Above the recorded end the log may end anywhere.
        wanted, kept = self._wanted() - gone, {offset for offset in self._wanted() - gone if offset < self.end}
        with Log.open(directory, rotten_logs._CONFIG, mode="r") as log:
            found, fine = rotten_logs.look(log, whole)
            assert kept <= found <= wanted, f"a reader has {found}, not {wanted}"
            assert not fine, "verify reports nothing to a reader"
            assert rotten_logs.readable(log, whole)[1], "a scan raises nothing"
            assert missing_ends(log._segment_set), "the quick check reports nothing"
            assert log.lowest_offset == self.lowest, f"a reader begins at {log.lowest_offset}"
        assert files_of(directory) == loss.of(fixture.files), "a reader has changed something"
        with Log.open(directory, rotten_logs._CONFIG) as log:
            assert log.recovery.corruption, "the next writer reports nothing"
            found, fine = rotten_logs.look(log, whole)
            assert kept <= found <= wanted, f"a writer has {found}, not {wanted}"
            assert not fine, "verify reports nothing to a writer"
            assert log.lowest_offset == self.lowest, f"a writer begins at {log.lowest_offset}"
            new = log.append(b"new", timestamp=2000)
            assert new >= self.end, f"offset {new} is used again"
        for mode in ("r", "w"):
            with Log.open(directory, rotten_logs._CONFIG, mode=mode) as log:  # type: ignore[arg-type]
                assert not log.verify().ok, f"later, verify reports nothing (mode {mode})"
                assert log.read(new).value == b"new"
        with Log.open(directory, rotten_logs._CONFIG) as log:
            log.trim(new)  # the operator has seen it
            assert log.verify().ok, "a gap stays, although it is trimmed"
        return "reported by everyone"

    def _ends_earlier(self, fixture: Fixture, loss: Loss, end: int) -> str:
        """Nothing records that there was more."""
        directory = fixture.damaged(loss)
        for mode in ("r", "w"):
            with Log.open(directory, rotten_logs._CONFIG, mode=mode) as log:  # type: ignore[arg-type]
                assert not log.recovery.corruption, f"{log.recovery}"
                found, fine = rotten_logs.look(log, self.whole)
                assert fine
                assert found == {offset for offset in self._wanted() if offset < end}
                assert log.next_offset == end
        return "a shorter log"

    def _costs_nothing(self, fixture: Fixture, loss: Loss, *, told: bool = False) -> str:
        directory = fixture.damaged(loss)
        lowest = 0 if loss.path == CHECKPOINT else self.lowest  # trimmed records return
        wanted = {offset for offset in self.whole.records if offset >= lowest}
        for mode in ("r", "w"):
            with Log.open(directory, rotten_logs._CONFIG, mode=mode) as log:  # type: ignore[arg-type]
                assert not log.recovery.corruption, f"{log.recovery}"
                assert not missing_ends(log._segment_set), "the quick check reports a loss"
                found, fine = rotten_logs.look(log, self.whole)
                assert (found, fine) == (wanted, True), f"{found}, not {wanted}"
                assert log.next_offset == self.whole.next_offset
                reported = Where.CHECKPOINT in [each.where for each in log.recovery.findings]
                assert reported is (told and mode == "w"), f"{log.recovery}"
        return "told, and rebuilt" if told else "costs nothing"


def _logs() -> Iterator[Fixture]:
    states = rotten_logs._states()
    for name, state in (("closed", "closed"), ("killed", "killed"), ("restarted", "killed")):
        files = states[state]
        whole = rotten_logs.whole_of(files)
        told = {} if name == "restarted" else {"": (whole.next_offset, 0)}
        saved = Checkpoint.decode(files[CHECKPOINT])
        end = saved.durable_offset if name == "restarted" else whole.next_offset
        yield Fixture(f"log, {name}", files, told, _Log(whole, saved.log_start, end))


# --- stores

#: Consequence of losing a file, by pattern; the first match counts. Deleting a directory deletes everything in it.
STORE: tuple[tuple[str, str], ...] = (
    (r"sawlog\.json", "the store is refused"),
    (r"topics/", "the store is refused"),
    (r"topics/[^/]+/topic\.json", "the topic is refused"),
    (r"topics/[^/]+/partition-\d+/", "the partition is refused"),
    (r"topics/[^/]+/partition-\d+/\d+\.log", "records are lost"),
    (r"groups/\d+\.log", "commits are lost"),
    (r"topics/[^/]+/", "nothing records it"),  # a directory that is gone cannot say that it was there
    (r"groups/|members/.*|staging/.*", "nothing records it"),
    (r"holders/|registry/", "costs nothing"),
    (
        r"(.*/)?(LOCK|checkpoint|visible|producers|maintenance|leader-epoch-checkpoint|\d+\.(index|timeindex))",
        "costs nothing",
    ),
)


def meaning(path: str) -> str:
    """Return the consequence of losing a file."""
    for pattern, what in STORE:
        if re.fullmatch(pattern, path):
            return what
    raise AssertionError(f"STORE has no row for {path}")


@dataclass(frozen=True)
class _Store:
    """The judge of a store."""

    served: rotten_stores.Served
    offsets: rotten_stores.Offsets

    def __call__(self, fixture: Fixture, loss: Loss) -> str:
        what = meaning(loss.path)
        if what == "the store is refused":
            for mode in ("r", "w"):
                _raises(lambda mode=mode: rotten_stores._open(fixture.damaged(loss), mode))  # type: ignore[misc]
        elif what in ("the topic is refused", "the partition is refused", "records are lost"):
            self._is_partial(fixture, loss)
        elif what == "commits are lost":
            self._loses_commits(fixture, loss)
        elif what == "costs nothing":
            for mode in ("r", "w"):
                with rotten_stores._open(fixture.damaged(loss), mode) as store:
                    assert rotten_stores.served(store) == self.served
                    assert rotten_stores.committed(store) == self.offsets
        return what

    def _is_partial(self, fixture: Fixture, loss: Loss) -> None:
        """One topic or partition raises; everything else is served; a consumer of all of it gets the error."""
        parts = loss.path.split("/")
        topic = parts[1]
        number = int(parts[2].removeprefix("partition-")) if parts[2].startswith("partition-") else None
        for mode in ("r", "w"):
            with rotten_stores._open(fixture.damaged(loss), mode) as store:
                for share, rows in self.served.items():
                    if share[0] == topic and number in (None, share[1]):
                        _raises(lambda share=share: _values(store, share))  # type: ignore[misc]
                    else:
                        assert _values(store, share) == rows, f"{share} differs"
                if mode == "w":
                    _raises(lambda: _drained(store))

    def _loses_commits(self, fixture: Fixture, loss: Loss) -> None:
        directory = fixture.damaged(loss)
        with Log.open(directory.child("groups"), mode="r") as log:
            assert not log.verify().ok, "verify reports nothing"
            assert missing_ends(log._segment_set), "the quick check reports nothing"
        with rotten_stores._open(directory) as store:
            assert rotten_stores.served(store) == self.served
            for group, offsets in rotten_stores.committed(store).items():  # never further on than it was
                assert all(self.offsets[group][share] >= offset for share, offset in offsets.items())
            store.groups.commit("third", {("stock", 0): 1})
            assert rotten_stores.committed(store)["third"] == {("stock", 0): 1}
        with Log.open(directory.child("groups"), mode="r") as log:
            assert not log.verify().ok, "after the next commit, verify reports nothing"


def _values(store: Store, share: rotten_stores.Share) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in store[share[0]].partition(share[1])]


def _drained(store: Store) -> None:
    with store.consumer("new", ["orders", "stock"]) as consumer:
        list(consumer.drain())


def _raises(call: Callable[[], object]) -> None:
    try:
        call()
    except (CorruptBatch, CorruptFile, SawlogError):
        return
    raise AssertionError("nothing is raised")


def _stores() -> Iterator[Fixture]:
    for name in ("closed", "killed"):
        files = rotten_stores._closed() if name == "closed" else rotten_stores._killed()
        with rotten_stores._open(written(MemoryDirectory(), files), "r") as store:
            judge = _Store(rotten_stores.served(store), rotten_stores.committed(store))
        told = {}
        for path in [path for path in files if path.endswith("/checkpoint")]:
            parent = path.removesuffix(f"/{CHECKPOINT}")
            last = max(each for each in files if each.startswith(f"{parent}/") and each.endswith(".log"))
            batches = scan(files[last])
            told[parent] = (batches[-1].last_offset + 1 if batches else 0, 0)
        yield Fixture(f"store, {name}", files, told, judge)


@cache
def fixtures() -> tuple[Fixture, ...]:
    """Return all fixtures."""
    with standing_still():
        return *_logs(), *_stores()


def add_options(parser: argparse.ArgumentParser) -> None:
    """For `python -m tests.faults missing`."""
    parser.add_argument("--fixture", help="only those with this in their name")
    parser.add_argument("--loss", type=Loss.parse, metavar="FILE:SIZE", help="only this one, as it was printed")


def run(options: argparse.Namespace) -> int:
    """Delete or cut, look, count."""
    work = [
        (each, [options.loss] if options.loss is not None else list(each.losses()))
        for each in fixtures()
        if options.fixture is None or options.fixture in each.name
    ]
    with Tally("missing", sum(len(losses) for _, losses in work), "losses") as tally:
        for fixture, losses in work:
            for loss in losses:
                try:
                    what = fixture.try_loss(loss)
                except Violation as found:
                    tally.violation(str(found))
                    what = "VIOLATION"
                tally.advance(what=f"{fixture.name}: {what}")
    if options.loss is not None:
        say(f"{options.loss}: {dict(tally.counts)}")
    return tally.finish()
