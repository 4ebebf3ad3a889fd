"""`make bench-topics`: what partitions, groups and compaction cost, compared with the log that they are built on.

    python benchmarks/topics.py [--quick] [--only PATTERN] [--dir DIRECTORY] [--json FILE] [--list]

- *writing*: records with keys through `topic.writer()` to 16 partitions, compared with a writer of one log.
- *turns*: two processes that append to one partition, a hundred records at a time, compared with one process that
  appends as many.
- *consuming*: a topic of 16 partitions to its end as the only member of a group, including joining and committing,
  compared with `topic.scan()` of the same records; and the same with asyncio, compared with that.
- *compaction*: a log of 1 GB in which one key of ten is live, in a separate process, so that its memory can be
  measured; compared with copying as many bytes from file to file.
- *queue* and *typed*: see `benchmarks/queues.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import command
import queues
from bench import Bench, Case
from dataset import Dataset
from ours import Sawlog
from rounds import Candidate, Sample, Trial, best_of, expect, timed
from rows import Figure, Row, Unit, at_least, at_most, rate, share
from turning import take_turns

import sawlog
from sawlog.aio.store import AsyncStore

PARTITIONS = 16
MIB = 1 << 20
COMPACTING = Path(__file__).with_name("compacting.py")


class Topic:
    """A topic with the interface of a store that is measured."""

    name = "topic"

    def __init__(self, path: Path) -> None:
        self.store = sawlog.open(path, maintenance_interval_s=None)
        self.topic = self.store.create_topic("measured", PARTITIONS, durability="os")
        self._writer = self.topic.writer()

    def append_each(self, batches: list[Any]) -> None:
        append = self._writer.append
        for batch in batches:
            for value, key in batch:
                append(value, key)
        self._writer.flush()

    def content(self) -> tuple[int, int]:
        return _content(self.topic.scan())

    def close(self) -> None:
        self.store.close()


def _content(records: Iterator[sawlog.Record]) -> tuple[int, int]:
    count = size = 0
    for record in records:
        count += 1
        size += len(record.key or b"") + len(record.value or b"")
    return count, size


def _batches(data: Dataset) -> list[Any]:
    """Build batches with random keys: the dataset's own keys repeat from batch to batch."""
    chance = random.Random(7)
    return [[(value, chance.randbytes(len(key))) for key, value in data.batch] for _ in range(data.batches)]


def _writing(bench: Bench, kind: type[Any], name: str, batches: list[Any], data: Dataset) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        with bench.fresh(kind) as store:
            store.append_each(batches[:1])
            whole = len(batches) / (len(batches) - 1)
            yield Trial(
                lambda: timed(lambda: store.append_each(batches[1:])).scaled(whole),
                lambda: expect(store.content(), data.content, f"content of {name}"),
            )

    return Candidate(name, trial)


def _write(bench: Bench) -> list[Row]:
    rows = []
    for value_bytes in (100, 1024):
        data = Dataset(value_bytes, bench.scaled(200_000, 50_000))
        batches = _batches(data)
        best = best_of(
            [
                _writing(bench, Topic, "16 partitions", batches, data),
                _writing(bench, Sawlog, "one log", batches, data),
            ],
            bench.effort,
        )
        figures = {name: rate(Unit.RECORDS, sample, data.count) for name, sample in best.items()}
        what = f"topic.writer(), keys to {PARTITIONS} partitions, {data.size}"
        rows.append(
            Row(what, figures["16 partitions"], "writer of one log", figures["one log"], share(0.6), percent=True)
        )
    return rows


def _consuming(store: Topic, data: Dataset) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        found: list[object] = []
        group = f"group-{time.monotonic_ns()}"

        def work() -> None:
            with store.store.consumer(group, ["measured"]) as consumer:
                found.append(_content(consumer.drain()))

        def check() -> None:
            expect(found, [data.content], "consumed")
            lag = sum(row.lag for row in store.store.groups.describe(group).rows)
            expect(lag, 0, "lag after consuming")
            store.store.groups.delete(group)

        yield Trial(lambda: timed(work), check)

    return Candidate("group", trial)


def _consuming_async(store: Topic, data: Dataset) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        found: list[object] = []
        group = f"group-{time.monotonic_ns()}"

        async def main() -> None:
            count = size = 0
            async with AsyncStore(store.store).consumer(group, ["measured"]) as consumer:
                async for record in consumer.drain():
                    count += 1
                    size += len(record.key or b"") + len(record.value or b"")
            found.append((count, size))

        def check() -> None:
            expect(found, [data.content], "consumed")
            store.store.groups.delete(group)

        yield Trial(lambda: timed(lambda: asyncio.run(main())), check)

    return Candidate("async", trial)


def _scanning(store: Topic, data: Dataset) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        found: list[object] = []
        yield Trial(
            lambda: timed(lambda: found.append(_content(store.topic.scan()))),
            lambda: expect(found, [data.content], "scanned"),
        )

    return Candidate("scan", trial)


def _consume(bench: Bench) -> list[Row]:
    data = Dataset(100, bench.scaled(1_000_000, 200_000))
    with bench.fresh(Topic) as store:
        store.append_each(_batches(data))
        candidates = [_consuming(store, data), _consuming_async(store, data), _scanning(store, data)]
        best = best_of(candidates, bench.effort)
    figures = {name: rate(Unit.RECORDS, sample, data.count) for name, sample in best.items()}
    what = f"consuming as a group, {PARTITIONS} partitions, {data.size}"
    return [
        Row(what, figures["group"], "topic.scan()", figures["scan"], share(0.6), percent=True),
        Row("the same with async for", figures["async"], "for", figures["group"], share(0.7), percent=True),
    ]


def _compact(bench: Bench) -> list[Row]:
    """The best of three runs, each on a log of its own, beside the best of three copies."""
    mb = bench.scaled(1000, 200)
    runs, copies = [], []
    for _ in range(bench.scaled(3, 1)):
        path = bench.path()
        try:
            _compacting("fill", path, mb)
            copies.append(_copy(path))
            runs.append(_compacting("compact", path, mb))
        finally:
            shutil.rmtree(path, ignore_errors=True)
    best = min(runs, key=lambda run: run["wall_s"])
    copied = min(copies, key=lambda copy: copy[1].wall_s)
    ours = rate(Unit.BYTES, Sample(best["wall_s"], best["cpu_s"]), best["bytes_read"])
    what = f"compaction of {best['bytes_read'] / 1e9:.2f} GB, one key of ten live"
    peak = Figure(Unit.MEMORY, max(run["peak_bytes"] for run in runs))
    return [
        Row(what, ours, "copy to a file", rate(Unit.BYTES, copied[1], copied[0]), at_least(Unit.BYTES, 150e6)),
        Row("memory of that", peak, bar=at_most(Unit.MEMORY, 500e6)),
    ]


def _compacting(what: str, path: Path, mb: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(COMPACTING), what, str(path), str(mb)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _copy(path: Path) -> tuple[int, Sample]:
    """All segments, with the fsync that compaction has at its end."""
    copy, size = path.with_suffix(".copy"), 0

    def work() -> None:
        nonlocal size
        with copy.open("wb") as out:
            for segment in sorted(path.glob("*.log")):
                with segment.open("rb") as source:
                    shutil.copyfileobj(source, out, MIB)
            out.flush()
            size = out.tell()

    try:
        sample = timed(work)
        return size, sample
    finally:
        copy.unlink()


CASES = [
    Case("writing", _write),
    Case("turns", take_turns),
    Case("consuming", _consume),
    Case("compaction", _compact),
    *queues.CASES,
]

if __name__ == "__main__":
    command.run(CASES, "Measure sawlog's topics against the log that they are made of.")
