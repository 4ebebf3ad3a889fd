"""Catching up: from any point of any history, a process arrives at the state that reopening the log would find.

The machine has a writer, and an observer: another object that never takes the lock. Whenever the observer catches up
with what the writer has published, a copy of the files is opened, and both must know the same: segments, indexes,
timestamps, producers, transactions and leader epochs. When the past changes, the observer begins again at the first
batch.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from sawlog import LogConfig
from sawlog.log.catching_up import catch_up, only_grew
from sawlog.log.epochs import Epochs
from sawlog.log.files import file_name
from sawlog.log.index import SegmentIndex
from sawlog.log.producers import ProducerState
from sawlog.log.recovery import recover
from sawlog.log.segment import Segment
from sawlog.log.transactions import TransactionIndex, Transactions
from sawlog.storage import Directory, FileDirectory

from ..batch import wire
from .places import FilePlace, MemoryPlace, Place
from .transactional import T, batch

PRODUCERS = st.integers(1, 3)
SHARES = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))
TIMES = st.integers(T - 10, T + 10)


def index_of(segment: Segment) -> object:
    """Return all entries of a segment's index."""
    index = segment.index
    entries = list(index.offsets), list(index.positions), list(index.times), list(index.time_offsets)
    return *entries, index.max_timestamp, index.max_timestamp_offset, index.since_bytes


def transactions_of(segment: Segment) -> TransactionIndex | None:
    """Return the transaction index of a sealed segment, loaded or not. An empty one may be missing."""
    found = segment.transaction_index or segment.load_transaction_index()
    return None if found == TransactionIndex((), segment.next_offset) else found


def known_segments(segments: list[Segment]) -> list[object]:
    """Return the state of each segment."""
    return [
        (
            each.base_offset,
            each.tail,
            each.sealed,
            each.timestamps(),
            transactions_of(each) if each.sealed else index_of(each),
        )
        for each in segments
    ]


def known_producers(state: ProducerState, end: int) -> object:
    """Return the state of producers and transactions, without the times at which it was recorded."""
    transactions = state.transactions
    return (
        [replace(each, timestamp=0) for each in state],
        [replace_time(each) for each in state.describe()],
        transactions.open,
        transactions.aborted,
        transactions.since,
        transactions.first_open,
        [transactions.stable(visible) for visible in range(end + 1)],
    )


def replace_time(info: Any) -> object:
    return replace(info, last_timestamp=0)


class Observer:
    """A process that knows the log up to some point."""

    def __init__(self, directory: Directory, config: LogConfig, base: int, epochs: Epochs) -> None:
        storage, index = directory.open(file_name(base)), SegmentIndex(base, config.index_interval_bytes)
        self.segments = [Segment.active(directory, base, storage, index, base, 0)]
        self.producers = ProducerState(config.producer_expiry_ms, Transactions(base))
        self.epochs = epochs

    def catch_up(self, end: tuple[int, int, int]) -> bool:
        """Return False if the log has to be opened again."""
        self.producers.transactions.see(end[0])
        found = catch_up(self.segments, self.epochs, self.producers, end)
        if found is not None:
            self.segments, self.epochs = found.segments, found.epochs
        return found is not None


class CatchingUpMachine(RuleBasedStateMachine):
    """A writer, and a process that sometimes catches up with it."""

    def make_place(self) -> Place:
        raise NotImplementedError

    @initialize(segment_bytes=st.sampled_from([150, 400, 2000]), interval=st.sampled_from([0, 300]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.place = self.make_place()
        self.config = LogConfig(segment_bytes=segment_bytes, durability="os", index_interval_bytes=interval)
        self.log = self.place.open(self.config)
        self.begin_again()

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.close()

    def directory(self, place: Place) -> Directory:
        return FileDirectory(place.path) if isinstance(place, FilePlace) else place.directory()  # type: ignore[no-any-return]

    def begin_again(self) -> None:
        """Start with nothing but the leader epochs, which opening reads from their file."""
        epochs, self.seen = self.log._segment_set.epochs, self.log._segment_set.all
        self.observer = Observer(self.directory(self.place), self.config, self.log.segments[0].base_offset, epochs)

    # --- the writer

    @rule(size=st.integers(0, 60), timestamp=TIMES)
    def append(self, size: int, timestamp: int) -> None:
        self.log.append(bytes(size), timestamp=timestamp)

    @rule(producer=PRODUCERS, count=st.integers(1, 4))
    def send(self, producer: int, count: int) -> None:
        """Append a batch of an idempotent producer, whose sequence the log remembers."""
        parts: list[wire.Parts] = [(i, 0, None, b"sent", ()) for i in range(count)]
        sent = {each.producer_id: each.last_sequence for each in self.log._producer_states}.get(producer + 10, -1)
        header = wire.Header(producer_id=producer + 10, producer_epoch=0, base_sequence=sent + 1)
        self.log.append_batches(wire.batch(parts, header))

    @rule(producer=PRODUCERS, count=st.integers(1, 4), timestamp=TIMES)
    def send_in_transaction(self, producer: int, count: int, timestamp: int) -> None:
        self.log.append_batches(batch([b"part"] * count, producer, timestamp=timestamp))

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        self.log.append_marker(producer, 0, commit=commit)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def fail(self, producer: int, commit: bool) -> None:
        """Append several batches and roll them back."""
        with suppress(ZeroDivisionError), self.log._appending():
            self.send_in_transaction(producer, 2, T)
            self.append(30, T)
            self.end_transaction(producer, commit)
            raise ZeroDivisionError

    @rule(skipped=st.integers(0, 3), ahead=st.integers(0, 2))
    def copy_from_another_log(self, skipped: int, ahead: int) -> None:
        """Append a batch with its own offset and leader epoch, which may be higher than the next ones."""
        offset, epoch = self.log.next_offset + skipped, self.log.leader_epoch + ahead
        parts: list[wire.Parts] = [(0, 0, None, b"copied", ())]
        self.log._append_at_offsets(wire.batch(parts, wire.Header(base_offset=offset, leader_epoch=epoch)))

    @rule()
    def seal(self) -> None:
        self.log.seal()

    @rule(share=SHARES)
    def truncate(self, share: float) -> None:
        lowest, end = self.log.lowest_offset, self.log.next_offset
        self.log.truncate(lowest + int((end - lowest) * share))

    @rule()
    def reopen(self) -> None:
        """Reopen the log: neither the files nor the observer's state change."""
        self.log.close()
        self.log = self.place.open(self.config)
        self.seen = self.log._segment_set.all

    # --- the observer

    @invariant()
    def notice_another_past(self) -> None:
        """Start the observer again: a truncation, or an append rolled back across segments, has replaced files."""
        if hasattr(self, "log"):
            before, self.seen = self.seen, self.log._segment_set.all
            if not only_grew(before, self.seen):
                self.begin_again()

    @rule()
    def catch_up(self) -> None:
        assert self.observer.catch_up(self.log._writable().active.tail)
        copy = self.place.copy()
        directory = self.directory(copy)
        fresh = recover(directory, self.config)
        assert known_segments(self.observer.segments) == known_segments(fresh.segments)
        end = fresh.segments[-1].next_offset
        assert known_producers(self.observer.producers, end) == known_producers(fresh.producers, end)
        assert self.observer.epochs == fresh.epochs


class InMemory(CatchingUpMachine):
    def make_place(self) -> Place:
        return MemoryPlace()


class InFiles(CatchingUpMachine):
    def make_place(self) -> Place:
        self.folder = tempfile.TemporaryDirectory()
        return FilePlace(Path(self.folder.name) / "log")

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


@pytest.mark.costly  # a model, compared with a log that is opened after each step
@pytest.mark.alternating
@pytest.mark.parametrize("times", [pytest.param(1, id="some"), pytest.param(4, id="more", marks=pytest.mark.slow)])
@pytest.mark.parametrize("machine", [InMemory, InFiles])
def test_catching_up_from_any_prefix_equals_opening(machine: Any, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(os, "fsync", os.fstat)
    monkeypatch.setattr(os, "fdatasync", os.fstat)
    count = settings.get_profile(settings._current_profile).max_examples
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=times * count,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
