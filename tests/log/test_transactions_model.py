"""Transactions against a plain model: any interleaving of producers, commits, aborts, truncations and reopenings.

The model is a list of appended batches without indexes: a batch is committed if the next marker of its producer
commits, aborted if that marker aborts, and undecided if there is none. After each step the log, a reader that was
opened at the beginning and one that is opened now must show exactly that, to readers of both isolation levels, and so
must the pages that a Kafka consumer receives, by the rule of Kafka's clients. Maintenance runs in between, and caches
are lost.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sawlog import Log, LogConfig
from sawlog.errors import OffsetOutOfRange, RecordRemoved

from .places import FilePlace, MemoryPlace, Place
from .transactional import Entry, Model, batch, fetched

PRODUCERS = st.integers(1, 3)
SHARES = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))


class TransactionMachine(RuleBasedStateMachine):
    """A log, a model of its contents, and a reader that was opened at the beginning."""

    def make_place(self) -> Place:
        raise NotImplementedError

    @initialize(segment_bytes=st.sampled_from([150, 400, 2000]), interval=st.sampled_from([0, 300]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.place = self.make_place()
        self.config = LogConfig(segment_bytes=segment_bytes, durability="os", index_interval_bytes=interval)
        self.log = self.place.open(self.config)
        self.reader = self.place.open(self.config, mode="r")
        self.model = Model([], 0)
        self.made = 0
        self.began_at = dict.fromkeys(range(1, 4), 0)

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.close()

    def values(self, count: int) -> tuple[bytes, ...]:
        self.made += count
        return tuple(b"v%d" % (self.made + i) for i in range(count))

    # --- appends

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        values = self.values(count)
        placed = self.log.append_many(values)
        self.model.entries.append(Entry(placed.start, values))

    @rule(producer=PRODUCERS, count=st.integers(1, 4))
    def send(self, producer: int, count: int) -> None:
        values = self.values(count)
        placed = self.log.append_batches(batch(values, producer))
        self.model.entries.append(Entry(placed.start, values, producer))

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        offset = self.log.append_marker(producer, 0, commit=commit)
        self.model.entries.append(Entry(offset, (), producer, commit))

    @rule(producer=PRODUCERS, commit=st.booleans(), count=st.integers(1, 3))
    def all_at_once(self, producer: int, commit: bool, count: int) -> None:
        """Append a whole transaction at once."""
        with self.log._appending():
            self.send(producer, count)
            self.append(1)
            self.end(producer, commit)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def fail(self, producer: int, commit: bool) -> None:
        """Append a whole transaction at once and roll the append back."""
        before = list(self.model.entries)
        with suppress(ZeroDivisionError), self.log._appending():
            self.send(producer, 2)
            self.append(3)
            self.end(producer, commit)
            raise ZeroDivisionError
        self.model.entries = before

    # --- everything else

    @rule(share=SHARES)
    def truncate(self, share: float) -> None:
        lowest, end = self.log.lowest_offset, self.log.next_offset
        offset = lowest + int((end - lowest) * share)
        self.model.entries = self.model.truncated(offset)
        self.log.truncate(offset)
        if self.log.next_offset != self.model.end:  # nothing is left: it continues where it was
            assert not self.model.entries

    @rule(share=SHARES)
    def trim(self, share: float) -> None:
        lowest, end = self.log.lowest_offset, self.log.next_offset
        offset = lowest + int((end - lowest) * share)
        self.log.trim(offset)
        self.model.lowest = self.log.lowest_offset

    @rule()
    def seal(self) -> None:
        self.log.seal()

    @rule(what=st.sampled_from(["merge", "recompress"]))
    def maintain(self, what: str) -> None:
        if what == "merge":
            self.log._merge_segments()
        else:
            self.log._recompress("gzip")

    @rule(killed=st.booleans(), lost=st.sets(st.sampled_from(["producers", ".txnindex", ".index"])))
    def reopen(self, killed: bool, lost: set[str]) -> None:
        if killed:
            self.place = self.place.copy()
        else:
            self.place.close()
        for name in self.place.names():
            if name.endswith(tuple(lost or ["-"])):
                self.place.remove(name)
        self.reader = self.place.open(self.config, mode="r")
        self.check(self.reader)
        self.log = self.place.open(self.config)

    @rule(data=st.binary(min_size=1, max_size=40), share=SHARES)
    def damage_an_index(self, data: bytes, share: float) -> None:
        """Truncate or change a `.txnindex` of the closed log."""
        self.place.close()
        found = [name for name in self.place.names() if name.endswith(".txnindex")]
        if found:
            name = found[int((len(found) - 1) * share)]
            before = self.place.files()[name]
            self.place.write(name, before[: int(len(before) * share)] + data)
        self.reader = self.place.open(self.config, mode="r")
        self.check(self.reader)
        self.log = self.place.open(self.config)

    # --- what must be true

    @invariant()
    def is_as_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        self.check(self.log)
        self.check(self.reader)

    @precondition(lambda self: hasattr(self, "model") and self.made % 3 == 0)
    @invariant()
    def a_new_reader_sees_the_same(self) -> None:
        fresh = Log.open(self.place.directory(), self.config, mode="r")
        self.check(fresh)
        if isinstance(self.place, FilePlace):
            fresh.close()

    def check(self, log: Log) -> None:
        stable = log.last_stable_offset
        assert stable in self.model.stable
        wanted = self.model.committed(stable)
        assert [(r.offset, r.value) for r in log.scan(isolation="uncommitted")] == self.model.records()
        assert [(r.offset, r.value) for r in log.scan()] == wanted
        assert [(r.offset, r.value) for r in fetched(log, 300)] == wanted
        columns = [batch.to_pydict() for batch in log.scan_arrow(columns=("offset", "value"))]
        assert [pair for each in columns for pair in zip(each["offset"], each["value"], strict=True)] == wanted
        self.check_one(log, dict(wanted))

    def check_one(self, log: Log, wanted: dict[int, bytes]) -> None:
        for offset in {self.model.lowest, self.made % (self.model.end + 1), self.model.end - 1}:
            try:
                assert log.read(offset).value == wanted[offset]
            except RecordRemoved as error:
                assert offset not in wanted
                assert error.following == min((o for o in wanted if o > offset), default=log.last_stable_offset)
            except OffsetOutOfRange:
                assert offset not in wanted
                assert not log.lowest_offset <= offset < log.last_stable_offset


class InMemory(TransactionMachine):
    def make_place(self) -> Place:
        return MemoryPlace()


class InFiles(TransactionMachine):
    def make_place(self) -> Place:
        self.folder = tempfile.TemporaryDirectory()
        return FilePlace(Path(self.folder.name) / "log")

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


@pytest.mark.alternating
@pytest.mark.parametrize("part", [pytest.param(12, id="some"), pytest.param(4, id="more", marks=pytest.mark.slow)])
@pytest.mark.parametrize("machine", [InMemory, InFiles])
def test_transactions_are_what_the_batches_say(machine: Any, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setattr(os, "fsync", os.fstat)
    monkeypatch.setattr(os, "fdatasync", os.fstat)
    count = settings.get_profile(settings._current_profile).max_examples
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count // part,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
