"""The kinds of work of `kills`: a process that works until it is killed, and the check of what it leaves.

A `Work` has two sides. `work` runs in the victim: it prints "ready" once it has opened its log or store, then writes
forever, and prints a line for every acknowledgement (and, where that matters, one before each attempt). `check` runs in
another process after the kill: it opens the same directory, compares it with the output, and writes a little more, as
the next writer would. It raises `AssertionError` for anything lost, invented, torn or out of order.

A killed process loses none of its writes, whatever the durability policy: this finds torn appends, wrong recovery,
half-done operations and locks that stay. It cannot find a missing fsync, because the page cache survives.

Every value contains its name and a digest (`tests.processes.content`), so that a wrong byte is noticed.
"""

from __future__ import annotations

import itertools
import os
import random
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sawlog import Log, LogConfig
from sawlog.batch.build import Producer, encode
from sawlog.config import Interval
from sawlog.errors import GroupNotFound, LogNotFound
from sawlog.store.directory import offsets as committed_offsets
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.commits import INLINE_BYTES
from sawlog.store.directory.transactions.intent import Part, Piece
from sawlog.store.directory.transactions.staging_directory import StagingDirectory

from ..processes import content, rewriting
from ..processes.acknowledging import Acknowledging
from ..processes.launch import say


@dataclass(slots=True)
class Round:
    """One victim: its number, and the lines that it said before it died."""

    number: int
    lines: list[list[str]] = field(default_factory=list)

    def said(self, word: str) -> list[list[str]]:
        """Return the lines that begin with a word, without it."""
        return [line[1:] for line in self.lines if line[0] == word]


def prepare() -> None:
    """Prepare this process: the log of the groups has small segments and is sometimes compacted."""
    committed_offsets._CONFIG = LogConfig(segment_bytes=2000)


class Work(ABC):
    """One kind of work. `state` is the result of the last check, in a form of the work's own; None at first."""

    name = ""
    #: True if several victims may die one after the other before a check.
    chained = False

    @abstractmethod
    def work(self, place: str, round_: int, state: Any) -> None:
        """Work until the process is killed."""

    @abstractmethod
    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> Any:
        """Return the new state. `found` counts events for the summary."""


def recovered(log: Log, found: Counter[str]) -> Log:
    """Open a log after a kill and check it."""
    assert log.recovery, f"recovery found corruption: {log.recovery}"
    report = log.verify()
    assert report, f"not sound: {report}"
    found["torn tails cut"] += log.recovery.truncated_bytes > 0
    found["indexes made anew"] += log.recovery.rebuilt_indexes
    return log


def names(records: Iterable[Any]) -> list[str]:
    """Return the names in the records after checking every byte."""
    return [content.name_of(record.value) for record in records]


def before_recovery(place: str, config: LogConfig) -> dict[int, str]:
    """Return the records that a reader sees before any writer has recovered the log."""
    try:
        with Log.open(place, config, mode="r") as reader:
            return {record.offset: content.name_of(record.value) for record in reader.scan()}
    except LogNotFound:
        return {}


def check_seen(
    seen: dict[int, str], there: dict[int, str], acknowledged: int, going: Mapping[int, str] | None = None
) -> None:
    """Check the records that a reader saw before the next writer recovered the log: a prefix of the log with everything
    acknowledged, but without records that were placed and not yet visible. Records that an unfinished truncation would
    drop (`going`) may have been seen."""
    end = max(seen, default=-1) + 1
    expected = {**(going or {}), **there}
    assert seen == {offset: name for offset, name in expected.items() if offset < end}, "a reader saw another log"
    missed = [offset for offset in there if end <= offset < acknowledged]
    assert not missed, f"a reader that came before the writer did not see offsets {missed}, which were acknowledged"


def leave(log: Log, chance: random.Random) -> None:
    """Close the log cleanly in half of the cases."""
    if chance.random() < 0.5:
        log.close()


# --- one log


class Small(Acknowledging):
    """Records of which several go into a small segment."""

    def batch(self, count: int) -> list[tuple[str, bytes]]:
        numbers = list(itertools.islice(self.numbers, count))
        made = [f"{self.round}.{number}.{numbers[0]}-{numbers[-1]}" for number in numbers]
        return [(name, content.make(name, self.random.choice([0, 60, 150]))) for name in made]


class Large(Acknowledging):
    """Records that take many pages: writing one takes long enough to be killed in the middle."""

    def batch(self, count: int) -> list[tuple[str, bytes]]:
        numbers = list(itertools.islice(self.numbers, count))
        made = [f"{self.round}.{number}.{numbers[0]}-{numbers[-1]}" for number in numbers]
        return [(name, content.make(name, self.random.choice([20_000, 80_000]))) for name in made]


class Appends(Work):
    """Appends in every form; with small segments, rotation at every step."""

    chained = True
    FORMS = ("append", "append_many", "append_arrow", "append_stream", "writer", "append_async")

    def __init__(self, name: str, config: LogConfig, form: type[Acknowledging] = Acknowledging) -> None:
        self.name = name
        self.config = config
        self.form = form

    def work(self, place: str, round_: int, state: Any) -> None:
        log = Log.open(place, self.config)
        call: Callable[[], None] = getattr(self.form(log, round_), self.FORMS[round_ % len(self.FORMS)])
        say("ready")
        while True:
            call()

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> list[str]:
        kept: list[str] = state or []
        seen = before_recovery(place, self.config)
        log = recovered(Log.open(place, self.config), found)
        there = names(log.scan())
        assert log.lowest_offset == 0
        assert log.next_offset == len(there)
        told = [int(line[0]) + 1 for round_ in rounds for line in round_.lines if line[0].isdecimal()]
        check_seen(seen, dict(enumerate(there)), max([len(kept), *told]))
        assert there[: len(kept)] == kept, "a record from before has changed"
        for round_ in rounds:
            for line in round_.lines:
                if line[0].isdecimal():
                    offset, name = int(line[0]), line[1]
                    assert offset < len(there), f"the acknowledged offset {offset} is gone"
                    assert there[offset] == name, f"offset {offset} was acknowledged as {name}, and is {there[offset]}"
                    found["acknowledged"] += 1
        self._check_order(there[len(kept) :], [round_.number for round_ in rounds])
        end = log.append(content.make(f"between.{rounds[-1].number}"))
        assert end == len(there)
        leave(log, random.Random(rounds[-1].number))
        return [*there, f"between.{rounds[-1].number}"]

    @staticmethod
    def _check_order(new: list[str], numbers: list[int]) -> None:
        """Check that the log has a prefix of each process's records, in order, and no half batch."""
        parts = [name.split(".") for name in new]
        for number in numbers:
            mine = list(itertools.takewhile(lambda part: int(part[0]) == number, parts))  # noqa: B023
            parts = parts[len(mine) :]
            assert [int(part[1]) for part in mine] == list(range(len(mine))), f"out of order: {mine[:3]} ..."
            if mine:
                assert mine[-1][1] == mine[-1][2].partition("-")[2], f"half a batch: {mine[-1]}"
        assert not parts, f"records that nobody sent: {parts[:3]}"


class Reopening(Appends):
    """Opens, appends a little, seals, closes, again and again: most of its time is recovery and closing."""

    def work(self, place: str, round_: int, state: Any) -> None:
        numbers = itertools.count()
        say("ready")
        while True:
            log = Log.open(place, self.config)
            work = self.form(log, round_)
            work.numbers = numbers
            for _ in range(work.random.randrange(4)):
                getattr(work, work.random.choice(self.FORMS[:4]))()
            if work.random.random() < 0.3:
                log.seal()
            log.close()


@dataclass(slots=True)
class Cut:
    """Expected contents of a log that is truncated and trimmed: names by offset, log start and end."""

    kept: dict[int, str] = field(default_factory=dict)
    lowest: int = 0
    end: int = 0


class Cutting(Work):
    """Truncates, trims, expires and seals between appends."""

    name = "truncate and trim"
    config = LogConfig(segment_bytes=1500, index_interval_bytes=200, durability="os", checkpoint_interval_ms=5)

    def work(self, place: str, round_: int, state: Any) -> None:
        log = Log.open(place, self.config)
        chance = random.Random(round_)
        numbers = itertools.count()
        say("ready")
        while True:
            kind = chance.randrange(10)
            if kind < 5:
                made = [f"{round_}.{next(numbers)}" for _ in range(chance.randrange(1, 6))]
                say(f"trying {' '.join(made)}")
                placed = log.append_many([content.make(name, chance.choice([0, 150])) for name in made])
                say(f"at {placed.start} {' '.join(made)}")
            elif kind < 7:
                to = max(log.next_offset - chance.randrange(8), log.lowest_offset)
                say(f"cutting {to}")
                log.truncate(to)
                say(f"cut {to}")
            elif kind < 9:
                to = min(log.lowest_offset + chance.randrange(8), log.next_offset)
                if kind == 8 and chance.random() < 0.1:
                    to = log.next_offset
                say(f"trimming {to}")
                log.trim(to)
                say(f"trimmed {to}")
            else:
                log.seal()

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> Cut:
        [round_] = rounds
        told: Cut = state or Cut()
        trying, pending = self._apply(told, round_)
        found["acknowledged"] += len(round_.said("at")) + len(round_.said("cut")) + len(round_.said("trimmed"))
        seen = before_recovery(place, self.config)
        log = recovered(Log.open(place, self.config), found)
        there = {record.offset: content.name_of(record.value) for record in log.scan()}
        cut_to = pending.get("cutting", told.end)
        going = {offset: name for offset, name in told.kept.items() if offset >= cut_to}
        check_seen(seen, there, min(told.end, cut_to), going)
        lowest, end = log.lowest_offset, log.next_offset
        assert sorted(there) == list(range(lowest, end)), "a gap"
        trimmed = pending.get("trimming", told.lowest)
        assert lowest in (told.lowest, trimmed), f"starts at {lowest}, and not at {told.lowest} or {trimmed}"
        if "cutting" in pending:
            assert pending["cutting"] <= end <= told.end, f"ends at {end} after {pending} from {told.end}"
        else:
            more = trying if end > told.end else []
            assert [there[offset] for offset in range(told.end, end)] == more, "neither all of a batch nor nothing"
        for offset, name in told.kept.items():
            if lowest <= offset < end:
                assert there[offset] == name, f"offset {offset} was acknowledged as {name}, and is {there[offset]}"
        assert end >= told.end or "cutting" in pending, f"ends at {end}, and {told.end} was acknowledged"
        assert log.append(content.make("between")) == end
        leave(log, random.Random(round_.number))
        return Cut({**there, end: "between"}, lowest, end + 1)

    @staticmethod
    def _apply(told: Cut, round_: Round) -> tuple[list[str], dict[str, int]]:
        """Apply the output up to its last line; return the attempts without an outcome."""
        trying: list[str] = []
        pending: dict[str, int] = {}
        for word, *rest in round_.lines:
            if word == "trying":
                trying, pending = rest, {}
            elif word == "at":
                start = int(rest[0])
                assert start == told.end, f"was placed at {start}, and the end was {told.end}"
                told.kept.update(enumerate(rest[1:], start))
                told.end += len(rest) - 1
                trying = []
            elif word in ("cutting", "trimming"):
                trying, pending = [], {word: int(rest[0])}
            elif word == "cut":
                told.end, pending = int(rest[0]), {}
                told.kept = {offset: name for offset, name in told.kept.items() if offset < told.end}
            elif word == "trimmed":
                told.lowest, pending = int(rest[0]), {}
                told.kept = {offset: name for offset, name in told.kept.items() if offset >= told.lowest}
        return trying, pending


class Maintenance(Work):
    """Compacts, merges, recompresses and scrubs beside its appends."""

    name = "maintenance"
    chained = True

    def work(self, place: str, round_: int, state: Any) -> None:
        log = Log.open(place, rewriting.SETTINGS)
        doing = rewriting.Rewriting(log, round_)
        say("ready")
        doing.run(itertools.count(), trims=False)

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> dict[str, int]:
        lines = [f"{key} {number} 0" for key, number in (state or {}).items()]
        lines += [" ".join(line) for round_ in rounds for line in round_.lines if line != ["ready"]]
        found["acknowledged"] += sum(len(round_.lines) for round_ in rounds)
        told = f"round {rounds[-1].number}"
        try:
            with Log.open(place, rewriting.SETTINGS, mode="r") as reader:
                rewriting.check(reader, "\n".join(lines), told)
        except LogNotFound:
            assert not lines, "the log is gone"
        log = recovered(Log.open(place, rewriting.SETTINGS), found)
        there = rewriting.check(log, "\n".join(lines), told)
        leave(log, random.Random(rounds[-1].number))
        return there


class Producing(Work):
    """An idempotent producer: an unacknowledged batch is sent again and stored once."""

    name = "producer"
    config = LogConfig(segment_bytes=1500, durability="os", checkpoint_interval_ms=5)

    @staticmethod
    def _batch(sequence: int) -> tuple[bytes, int]:
        """Return the batch at a sequence number, which is always the same."""
        count = random.Random(sequence).randrange(1, 5)
        values = [content.make(str(sequence + at), 60) for at in range(count)]
        return encode(values, producer=Producer(7, 0, sequence)), count

    def work(self, place: str, round_: int, state: Any) -> None:
        log = Log.open(place, self.config)
        sequence = state or 0
        say("ready")
        while True:
            raw, count = self._batch(sequence)
            log.append_batches(raw)
            sequence += count
            say(f"done {sequence}")

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> int:
        done = max([state or 0, *(int(line[0]) for line in rounds[-1].said("done"))])
        found["acknowledged"] += len(rounds[-1].said("done"))
        log = recovered(Log.open(place, self.config), found)
        there = names(log.scan())
        assert there == [str(number) for number in range(len(there))], "lost, twice or out of order"
        assert len(there) in (done, done + self._batch(done)[1]), f"{done} were acknowledged, {len(there)} are there"
        leave(log, random.Random(rounds[-1].number))
        return done


# --- a store


def opened(place: str) -> DirectoryStore:
    return DirectoryStore.open(place, maintenance_interval_s=None)


def sound(log: Log, found: Counter[str]) -> list[str]:
    """Check a partition that was opened for writing and return its names."""
    with log._hold():
        return names(recovered(log, found).scan())


class Transactions(Work):
    """Transactions over four partitions, with and without a name, in the intent and in staged files."""

    name = "transactions"
    PLACES = (("orders", 0), ("orders", 1), ("orders", 2), ("stock", 0))

    def _topics(self, store: DirectoryStore) -> None:
        store.create_topic("orders", partitions=3, exist_ok=True, segment_bytes=200_000)
        store.create_topic("stock", exist_ok=True, segment_bytes=200_000)

    def work(self, place: str, round_: int, state: Any) -> None:
        store = opened(place)
        self._topics(store)
        chance = random.Random(round_)
        say("ready")
        for number in itertools.count(round_ * 1_000_000):
            places = chance.sample(self.PLACES, chance.randrange(1, 5))
            told = "+".join(sorted(f"{topic}-{partition}" for topic, partition in places))
            named = chance.random() < 0.5
            say(f"trying {number} {'named' if named else 'nameless'}")
            with store.transaction(*(("job", number) if named else ())) as tx:
                size = INLINE_BYTES if chance.random() < 0.2 else 0
                for topic, partition in places:
                    for at in range(2):
                        tx.append(topic, content.make(f"{number}.{told}.{at}", size), partition=partition)
            say(f"done {number}")

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> dict[str, list[str]]:
        [round_] = rounds
        tried = round_.said("trying")
        done = {int(line[0]) for line in round_.said("done")}
        found["acknowledged"] += len(done)
        before: dict[str, list[str]] = state or {}
        with opened(place) as store:
            self._topics(store)
            there = {f"{topic}-{n}": sound(store[topic].partition(n), found) for topic, n in self.PLACES}
            parts: dict[int, tuple[str, Counter[str]]] = {}
            for where, held in there.items():
                assert held[: len(before.get(where, []))] == before.get(where, []), "what was there before has changed"
                numbers = [int(name.split(".")[0]) for name in held]
                assert numbers == sorted(numbers), "out of order"
                for name in held:
                    number, told, _ = name.split(".")
                    parts.setdefault(int(number), (told, Counter()))[1][where] += 1
            for number, (told, counts) in parts.items():
                assert counts == dict.fromkeys(told.split("+"), 2), f"{number} went to {told}, and is in {counts}"
            assert done <= parts.keys(), f"acknowledged and lost: {done - parts.keys()}"
            new = {number for number in parts if number >= round_.number * 1_000_000}
            last = int(tried[-1][0]) if tried else -1
            assert new <= done | {last}, "a transaction that was never tried"
            found["rolled forward"] += last in parts and last not in done
            if tried and tried[-1][1] == "named":
                assert store.transaction("job", last).replayed == (last in parts), "a name forgot its number"
            staged = os.listdir(f"{place}/staging") if os.path.exists(f"{place}/staging") else []
            left = [name for name in staged if not name.startswith("=")]
            assert left == [], f"left in staging: {left}"
        return there


class Staging(Work):
    """Micro-batches as Spark's tasks and driver write them: staged by some, published by one, repeated if in doubt."""

    name = "staging"
    PARTITIONS = 2

    def work(self, place: str, round_: int, state: Any) -> None:
        store = opened(place)
        topic = store.create_topic("orders", partitions=self.PARTITIONS, exist_ok=True, segment_bytes=20_000)
        area = StagingDirectory(store._directory)
        say("ready")
        for batch in itertools.count((state or {}).get("next", 0)):
            stage = f"sparkquery-{batch}"
            parts = []
            for task in range(2):
                label = f"{task}-{round_}"
                area.lend(stage, label)
                file = area.file(stage, label)
                for partition in range(self.PARTITIONS):
                    values = [content.make(f"{batch}.{task}.{at}", 300 * (batch % 5)) for at in range(3)]
                    piece: Piece = file.write(encode(values))
                    parts.append(Part("orders", topic.id, partition, 3, (piece,)))
                file.sync()
                file.close()
            say(f"trying {batch}")
            store._staging.publish(stage, parts, name="query", sequence=batch)
            say(f"done {batch}")
            if batch % 7 == 3:
                store._staging.discard(stage)  # a driver in doubt: the published data stays

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> dict[str, int]:
        [round_] = rounds
        following = max([(state or {}).get("next", 0), *(int(line[0]) + 1 for line in round_.said("done"))])
        trying = max([-1, *(int(line[0]) for line in round_.said("trying"))])
        found["acknowledged"] += len(round_.said("done"))
        with opened(place) as store:
            if "orders" not in store:
                assert following == 0, "the topic is gone"
                return {"next": 0, "there": 0}
            held = {tuple(sound(store["orders"].partition(n), found)) for n in range(store["orders"].partitions)}
            assert len(held) == 1, "the partitions differ"
            [there] = held
            batches = len(there) // 6
            assert list(there) == [f"{b}.{t}.{at}" for b in range(batches) for t in range(2) for at in range(3)]
            before = (state or {}).get("there", 0)
            assert batches in {max(before, following), max(before, following, trying + 1)}, (
                f"{before} were there, {following} acknowledged, {trying} tried last, {batches} are there"
            )
            found["rolled forward"] += batches > max(before, following)
            assert store.transaction("query", batches).replayed is False
            assert batches == 0 or store.transaction("query", batches - 1).replayed is True
        return {"next": following, "there": batches}


class Committing(Work):
    """A member of a group that commits all the time; its group's log rotates and is compacted."""

    name = "group commits"

    def work(self, place: str, round_: int, state: Any) -> None:
        store = opened(place)
        topic = store.create_topic("orders", partitions=2, exist_ok=True)
        for partition in range(2):
            topic.append(b"x", partition=partition)
        consumer = store.consumer("billing", ["orders"], auto_commit_ms=None)
        assert consumer.assignment == {("orders", 0), ("orders", 1)}, "somebody dead still owns a partition"
        say("ready")
        for number in itertools.count(round_ * 1_000_000):
            for partition in range(2):
                consumer.seek("orders", partition, number)
            say(f"trying {number}")
            consumer.commit()
            say(f"done {number}")

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> int | None:
        [round_] = rounds
        done = [int(line[0]) for line in round_.said("done")]
        trying = [int(line[0]) for line in round_.said("trying")]
        found["acknowledged"] += len(done)
        last: int | None = done[-1] if done else state
        with opened(place) as store:
            committed: set[int | None] = {None}
            with suppress(GroupNotFound):
                committed = {row.committed for row in store.groups.describe("billing").rows}
            assert len(committed) == 1, f"half of a commit: {committed}"
            [there] = committed
            assert there in (last, *trying[-1:]), f"{last} was committed, {there} is found"
            if "groups" in os.listdir(place):
                with Log.open(f"{place}/groups", mode="r") as log:
                    assert log.verify(), str(log.verify())
            if "orders" in store:
                with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
                    assert len(consumer.assignment) == 2, "somebody dead still owns a partition"
                    # A commit that was placed but not visible appears with the next turn, not earlier.
                    position = consumer.position("orders", 0)
                    if there is not None or position in trying[-1:]:
                        assert position in (there, *trying[-1:]), f"{there} was seen, {position} is found"
                        there = position
        return there


class Watched(Work):
    """Appends, while a reader and a group member in separate processes report the records they see. A record that was
    seen stays, and the group receives every record, however its writer ended."""

    TOPIC = "watched"

    def __init__(self, durability: str) -> None:
        self.name = f"watched {durability}"
        self.durability = durability

    def _topic(self, store: DirectoryStore) -> Log:
        settings = {"segment_bytes": 4000, "durability": self.durability}
        return store.create_topic(self.TOPIC, exist_ok=True, **settings).partition(0)

    def work(self, place: str, round_: int, state: Any) -> None:
        with opened(place) as store:
            self._topic(store)
        me = os.getpid()
        for watch in (self._read, self._consume):
            if os.fork() == 0:
                self._until_alone(place, watch, me)
        log = self._topic(opened(place))
        say("ready")
        for number in itertools.count():
            made = [content.make(f"{round_}.{number}.{at}", 40 * (number % 5)) for at in range(number % 4 + 1)]
            if number % 5 == 4:
                with log._appending():
                    for value in made:
                        log.append(value)
                    log.sync()
            else:
                log.append_many(made)

    @staticmethod
    def _until_alone(place: str, watch: Callable[[str, Callable[[], bool]], None], parent: int) -> NoReturn:
        """Run in a forked process until shortly after its parent has died."""
        try:
            watch(place, lambda: os.getppid() == parent)
            os._exit(0)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            tell("failed")
            os._exit(1)

    def _read(self, place: str, goes_on: Callable[[], bool]) -> None:
        with DirectoryStore.open(place, "r") as store:
            log = store[self.TOPIC].partition(0)
            at = log.visible_offset
            while True:
                last = not goes_on()
                for record in log.scan(at):
                    tell(f"saw {record.offset} {content.name_of(record.value)}")
                    at = record.offset + 1
                if last:
                    return
                time.sleep(0.0003)

    def _consume(self, place: str, goes_on: Callable[[], bool]) -> None:
        consumer = opened(place).consumer("watching", [self.TOPIC], auto_commit_ms=None)
        while True:
            last = not goes_on()
            for record in consumer.poll(timeout_s=0, max_records=20):
                tell(f"got {record.offset} {content.name_of(record.value)}")
            consumer.commit()
            if last:
                return

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> dict[str, Any]:
        [round_] = rounds
        before: dict[str, Any] = state or {"there": [], "got": set()}
        assert not round_.said("failed"), "somebody who watched could not"
        with opened(place) as store:
            log = self._topic(store)
            there = sound(log, found)
            assert there[: len(before["there"])] == before["there"], "a record from before has changed"
            got = set(before["got"])
            for word in ("saw", "got"):
                for offset, name in round_.said(word):
                    known = there[int(offset)] if int(offset) < len(there) else "gone"
                    assert known == name, f"somebody {word} {name} at offset {offset}, which is {known}"
                    found["seen by others"] += 1
            got.update(name for _, name in round_.said("got"))
            with store.consumer("watching", [self.TOPIC]) as consumer:
                got.update(content.name_of(record.value) for record in consumer.drain())
            skipped = [name for name in there if name not in got]
            assert not skipped, f"the group was never given {skipped}"
        return {"there": there, "got": got}


def tell(line: str) -> None:
    """Print a line in a single write, for processes that share a pipe."""
    os.write(1, f"{line}\n".encode())


class Catalogue(Work):
    """Creates, alters, deletes and replaces topics."""

    name = "catalogue"

    def work(self, place: str, round_: int, state: Any) -> None:
        topics: dict[str, list[Any]] = {name: list(told) for name, told in (state or {}).items()}
        store = opened(place)
        chance = random.Random(round_)
        say("ready")
        for number in itertools.count():
            kind = chance.choice(["create", "create", "alter", "delete", "replace"])
            if len(topics) > 6:
                kind = "delete"
            known = sorted(topics)
            if kind != "create" and len(known) < 2:
                continue
            name = f"t{round_}-{number}" if kind == "create" else chance.choice(known)
            step = [kind, name]
            if kind in ("create", "alter"):
                step.append(str((topics[name][0] if kind == "alter" else 0) + chance.randrange(1, 3)))
            if kind == "replace":
                step.append(chance.choice([other for other in known if other != name]))
            say(f"trying {' '.join(step)}")
            self._do(store, step)
            self.apply(topics, step)
            say(f"done {' '.join(step)}")

    @staticmethod
    def _do(store: DirectoryStore, step: list[str]) -> None:
        kind, name, *rest = step
        if kind == "create":
            store.create_topic(name, partitions=int(rest[0])).append(content.make(name), partition=0)
        elif kind == "alter":
            store.alter_topic(name, partitions=int(rest[0]))
        elif kind == "delete":
            store.delete_topic(name)
        else:
            store.replace_topic(name, rest[0])

    @staticmethod
    def apply(topics: dict[str, list[Any]], step: list[str]) -> None:
        """Apply to the expected catalogue: the partitions of each topic, and the name in its first record."""
        kind, name, *rest = step
        if kind == "create":
            topics[name] = [int(rest[0]), name]
        elif kind == "alter":
            topics[name][0] = int(rest[0])
        elif kind == "delete":
            del topics[name]
        else:
            topics[name] = topics.pop(rest[0])

    def check(self, place: str, state: Any, rounds: list[Round], found: Counter[str]) -> dict[str, list[Any]]:
        [round_] = rounds
        told: dict[str, list[Any]] = {name: list(each) for name, each in (state or {}).items()}
        for step in round_.said("done"):
            self.apply(told, step)
        after = {name: list(each) for name, each in told.items()}
        tried = round_.said("trying")
        fresh = ""
        if len(tried) > len(round_.said("done")):
            self.apply(after, tried[-1])
            fresh = tried[-1][1] if tried[-1][0] == "create" else ""
        found["acknowledged"] += len(round_.said("done"))
        with DirectoryStore.open(place, "r") if os.path.exists(f"{place}/sawlog.json") else opened(place) as store:
            seen = store.topics()
        with opened(place) as store:
            there = {name: [store[name].partitions, self._marker(store, name, found)] for name in store.topics()}
            if fresh in there and there[fresh][1] == "":  # created, and killed before its first record
                there[fresh][1] = fresh
                store[fresh].append(content.make(fresh), partition=0)
            assert there in (told, after), f"there is {there}, and should be {told} or {after}"
            assert seen == sorted(there), "a reader saw other topics"
            left = [name for name in os.listdir(f"{place}/topics") if name.endswith((".tmp", ".deleted", ".swap"))]
            assert left == [], f"left behind: {left}"
        return there

    @staticmethod
    def _marker(store: DirectoryStore, name: str, found: Counter[str]) -> str:
        held = sound(store[name].partition(0), found)
        return held[0] if held else ""


_SETTINGS = LogConfig(segment_bytes=30_000, index_interval_bytes=500, checkpoint_interval_ms=5)

WORKS: dict[str, Work] = {
    each.name: each
    for each in (
        Appends("append always", _SETTINGS),
        Appends("append interval", _SETTINGS.with_(durability=Interval(ms=3, bytes=3000))),
        Appends("append os", _SETTINGS.with_(durability="os")),
        Appends("rotation", _SETTINGS.with_(durability="os", segment_bytes=3000, index_interval_bytes=100), Small),
        Appends("large records", _SETTINGS.with_(durability="os", segment_bytes=3_000_000), Large),
        Reopening("reopening", _SETTINGS.with_(segment_bytes=6000), Small),
        Cutting(),
        Maintenance(),
        Producing(),
        Transactions(),
        Staging(),
        Committing(),
        Watched("always"),
        Watched("os"),
        Catalogue(),
    )
}
