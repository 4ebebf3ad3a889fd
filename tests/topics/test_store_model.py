"""Anything a program does to a store, in any order, with orderly ends and deaths between: the same as plain lists."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sawlog.errors import ReplayMismatch
from sawlog.storage import MemoryDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.commits import INLINE_BYTES
from sawlog.store.partitioner import partition_for

from .stores import copied, values

NAMES = st.sampled_from(["orders", "stock", "a.b-c_D"])
KEYS = st.binary(min_size=0, max_size=3)
VALUES = st.binary(max_size=20) | st.integers(100, 110).map(lambda percent: b"x" * (INLINE_BYTES * percent // 100))


class StoreMachine(RuleBasedStateMachine):
    """A store, and what should be in it: for each topic a list of values for each partition."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = MemoryDirectory()
        self.store = DirectoryStore.open(self.directory, maintenance_interval_s=None)
        self.model: dict[str, list[list[bytes]]] = {}
        self.sequence = 0
        #: Records that the last named transaction stored, by topic id.
        self.named: Counter[str] = Counter()

    def teardown(self) -> None:
        self.store.close()

    # --- topics

    @rule(name=NAMES, partitions=st.integers(1, 3), small=st.booleans())
    def create(self, name: str, partitions: int, small: bool) -> None:
        self.store.create_topic(name, partitions, exist_ok=True, segment_bytes=2 * INLINE_BYTES if small else None)
        self.model.setdefault(name, [[] for _ in range(partitions)])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), more=st.integers(0, 2))
    def alter(self, data: st.DataObject, more: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.store.alter_topic(name, len(self.model[name]) + more, retention_ms=more or None)
        self.model[name] += [[] for _ in range(more)]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.store.delete_topic(name)
        del self.model[name]

    # --- records

    @precondition(lambda self: self.model)
    @rule(data=st.data(), records=st.lists(st.tuples(VALUES, KEYS), min_size=1, max_size=5), how=st.integers(0, 2))
    def append(self, data: st.DataObject, records: list[tuple[bytes, bytes]], how: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        topic, expected = self.store[name], self.model[name]
        if how == 0:
            for value, key in records:
                placed = topic.append(value, key)
                assert placed == (partition_for(key, len(expected)), len(expected[placed.partition]))
                expected[placed.partition].append(value)
            return
        if how == 1:
            for value, key in records:  # one by one, because together they may be more than a segment takes
                topic.append_many([(value, key)])
        else:
            with topic.writer(batch_bytes=100) as writer:
                for value, key in records:
                    writer.append(value, key)
        for value, key in records:
            expected[partition_for(key, len(expected))].append(value)

    @precondition(lambda self: self.model)
    @rule(
        data=st.data(),
        records=st.lists(st.tuples(VALUES, KEYS), max_size=6),
        end=st.sampled_from(["commit", "abort", "die", "named", "replayed"]),
    )
    def transact(self, data: st.DataObject, records: list[tuple[bytes, bytes]], end: str) -> None:
        if end == "named" or not self.sequence:
            self.sequence += 1
            end = "named"
        tx = self.store.transaction(*(("query", self.sequence) if end in ("named", "replayed") else ()))
        assert tx.replayed == (end == "replayed")
        stored = end in ("commit", "named")
        given: Counter[str] = Counter()
        for value, key in records:
            topic = data.draw(st.sampled_from(sorted(self.model)))
            tx.append(topic, value, key)
            given[self.store[topic].id] += 1
            if stored:
                expected = self.model[topic]
                expected[partition_for(key, len(expected))].append(value)
        if end == "abort":
            tx.abort()
        elif end == "die":
            self.die()
        elif end == "replayed" and given not in (Counter(), self.named):
            with pytest.raises(ReplayMismatch):
                tx.commit()
        else:
            tx.commit()
        if end == "named":
            self.named = given

    # --- ends

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = DirectoryStore.open(self.directory, maintenance_interval_s=None)

    @rule()
    def die(self) -> None:
        self.directory, before = copied(self.directory), self.store
        before.close()
        self.store = DirectoryStore.open(self.directory, maintenance_interval_s=None)

    @invariant()
    def agrees(self) -> None:
        assert self.store.topics() == sorted(self.model)
        with DirectoryStore.open(self.directory, "r") as reader:
            for store in (self.store, reader):
                for name, expected in self.model.items():
                    topic = store[name]
                    assert [values(topic.partition(n).scan()) for n in range(topic.partitions)] == expected


TestStore = pytest.mark.costly(StoreMachine.TestCase)  # 10 examples of 30 steps, each compared with the model
TestStore.settings = settings(max_examples=settings().max_examples // 5, stateful_step_count=30, deadline=None)
