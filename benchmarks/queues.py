"""Rows about queues and typed records for `make bench-topics`.

- *queue*: every message of a topic fetched, acknowledged one by one, and all of it durable at the end; compared with
  honker (each job by itself; and its fast path, `claim_batch` and `ack_batch` of two thousand) and persist-queue
  (`SQLiteAckQueue`, `get` and `ack`), where they are installed. Both run SQLite in WAL mode: honker syncs at
  checkpoints only, persist-queue at each commit; ours has one fdatasync per two thousand.
- *typed*: scanning a topic of JSON as msgspec structs through a view, compared with decoding `record.value` by hand.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import Bench, Case
from rounds import Candidate, Trial, best_of, expect, timed
from rows import Row, Unit, at_least, rate, share, times

import sawlog

VALUE = {"id": 7, "customer": "ada", "note": "x" * 60}
BATCH = 1000
#: Jobs that honker claims at once, as many as sawlog's queue fetches.
CLAIMED = 2000


class OurQueue:
    """A topic, worked off by one worker."""

    name = "sawlog"

    def __init__(self, path: Path) -> None:
        self._store = sawlog.open(path, maintenance_interval_s=None)
        self._topic = self._store.create_topic("jobs")

    def fill(self, count: int) -> None:
        self._topic.append_many([json.dumps(VALUE).encode()] * count)

    def work(self) -> int:
        count = 0
        with self._store.queue("jobs", group="workers") as queue:
            for message in queue.drain():
                queue.ack(message)
                count += 1
        return count

    def left(self) -> int:
        return sum(row.lag for row in self._store.groups.describe("workers").rows)

    def close(self) -> None:
        self._store.close()


class Honker:
    """Its fast path: batches."""

    name = "honker, batches"

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._database = importlib.import_module("honker").open(str(path / "queue.db"))
        self._queue = self._database.queue("jobs")

    def fill(self, count: int) -> None:
        with self._database.transaction() as transaction:
            for _ in range(count):
                self._queue.enqueue(VALUE, tx=transaction)

    def work(self) -> int:
        count = 0
        while jobs := self._queue.claim_batch("worker", CLAIMED):
            for job in jobs:
                count += job.payload["id"] == VALUE["id"]
            self._queue.ack_batch([job.id for job in jobs], "worker")
        return count

    def left(self) -> int:
        return len(self._queue.claim_batch("other", 1))

    def close(self) -> None:
        self._database.close()


class HonkerEach(Honker):
    """One job per claim and acknowledgement, as in honker's manual."""

    name = "honker, each"

    def work(self) -> int:
        count = 0
        while (job := self._queue.claim_one("worker")) is not None:
            count += job.payload["id"] == VALUE["id"]
            job.ack()
        return count


class PersistQueue:
    """Its queue with acknowledgements."""

    name = "persist-queue"

    def __init__(self, path: Path) -> None:
        self._queue = importlib.import_module("persistqueue").SQLiteAckQueue(str(path), auto_commit=True)

    def fill(self, count: int) -> None:
        for _ in range(count):
            self._queue.put(VALUE)

    def work(self) -> int:
        count = 0
        while self._queue.size:
            item = self._queue.get(block=False, raw=True)
            self._queue.ack(id=item["pqid"])
            count += 1
        return count

    def left(self) -> int:
        return int(self._queue.ready_count() + self._queue.unack_count())

    def close(self) -> None:
        self._queue.close()


def _working(bench: Bench, kind: type[Any], count: int) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        with bench.fresh(kind) as queue:
            queue.fill(count)
            found: list[int] = []

            def check() -> None:
                expect(found, [count], f"acknowledged with {kind.name}")
                expect(queue.left(), 0, f"left with {kind.name}")

            yield Trial(lambda: timed(lambda: found.append(queue.work())), check)

    return Candidate(kind.name, trial)


def _queue(bench: Bench) -> list[Row]:
    count = bench.scaled(50_000, 20_000)
    few = bench.scaled(2000, 500)
    counts = {OurQueue: count, Honker: count, HonkerEach: few, PersistQueue: few}
    modules = {OurQueue: "sawlog", Honker: "honker", HonkerEach: "honker", PersistQueue: "persistqueue"}
    kinds: list[Any] = [kind for kind, module in modules.items() if importlib.util.find_spec(module) is not None]
    best = best_of([_working(bench, kind, counts[kind]) for kind in kinds], bench.effort)
    figures = {kind: rate(Unit.RECORDS, best[kind.name], counts[kind], waits=True) for kind in kinds}
    ours = figures[OurQueue]
    rows = [Row("queue: delivered and acknowledged one by one, durable", ours, bar=at_least(Unit.RECORDS, 20_000))]
    bars = {HonkerEach: times(5), Honker: times(5), PersistQueue: times(10)}
    rows += [
        Row(f"the same beside {kind.name}", ours, kind.name, figures[kind], bar)
        for kind, bar in bars.items()
        if kind in figures
    ]
    return rows


def _typed(bench: Bench) -> list[Row]:
    if importlib.util.find_spec("msgspec") is None:
        return []
    msgspec: Any = importlib.import_module("msgspec")
    order = msgspec.defstruct("Order", [("id", int), ("customer", str), ("note", str)])
    decode = msgspec.json.Decoder(order).decode
    count = bench.scaled(500_000, 100_000)
    store = sawlog.open(bench.path(), maintenance_interval_s=None)
    topic = store.create_topic("orders", durability="os")
    for first in range(0, count, BATCH):
        topic.append_many([json.dumps({**VALUE, "id": number}).encode() for number in range(first, first + BATCH)])
    view = topic.typed(sawlog.JSON(order))

    def by_hand() -> int:
        return deque((decode(record.value) for record in topic.scan()), maxlen=1)[0].id

    def typed() -> int:
        return deque((record.value for record in view.scan()), maxlen=1)[0].id

    def candidate(name: str, work: Any) -> Candidate:
        @contextmanager
        def trial() -> Iterator[Trial]:
            found: list[int] = []
            yield Trial(lambda: timed(lambda: found.append(work())), lambda: expect(found, [count - 1], name))

        return Candidate(name, trial)

    with store:
        best = best_of([candidate("typed", typed), candidate("by hand", by_hand)], bench.effort)
    figures = {name: rate(Unit.RECORDS, sample, count) for name, sample in best.items()}
    what = "typed scan, JSON as msgspec structs"
    return [Row(what, figures["typed"], "decoding by hand", figures["by hand"], share(1 / 1.5), percent=True)]


CASES = [Case("queue", _queue), Case("typed", _typed)]
