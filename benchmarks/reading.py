"""Reads: as objects, as Arrow, as raw batches, and one record at a time.

Logs are sealed and warm in the page cache, as are the rivals' stores. Results are consumed by a deque of length zero,
so that the surrounding loop does not dilute the ratio; the contents were checked before.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from bench import Bench, Case, working
from dataset import Dataset
from machine import checksum, memory_copy
from ours import Sawlog
from rivals import Lmdb, PlainFile, Rocks, Sqlite
from rounds import Candidate, Sample, Trial, best_of, expect
from rows import Bar, Figure, Row, Unit, at_most, rate, share, times

#: Rows in one Arrow batch of a rival's: about as many as we give ourselves.
ARROW_ROWS = 8192


def _counted(records: Iterable[Any]) -> int:
    """Count records at the speed of C."""
    numbers = count()
    deque(zip(records, numbers, strict=False), maxlen=0)
    return next(numbers)


def _rows(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _prove(batches: Iterable[pa.RecordBatch], data: Dataset) -> None:
    """That Arrow batches hold all keys and values."""
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        for name in ("key", "value"):
            size += pc.sum(pc.binary_length(batch.column(name).cast(pa.large_binary()))).as_py()
    expect((rows, size), data.content, "content of the Arrow batches")


def _records(value_bytes: int, records: int, bars: dict[str, Bar]) -> Callable[[Bench], list[Row]]:
    def run(bench: Bench) -> list[Row]:
        data = Dataset(value_bytes, bench.scaled(records, records // 2))
        stores = [bench.filled_log(data)]
        stores += [bench.filled(kind, data) for kind in (Sqlite, Lmdb, Rocks, PlainFile)]
        candidates = [_scanning(store.name, store, data) for store in stores]
        best = best_of(candidates, bench.effort)
        ours = rate(Unit.RECORDS, best[Sawlog.name], data.count)
        return [
            Row(f"scan to records, {data.size}", ours, name, rate(Unit.RECORDS, best[name], data.count), bars.get(name))
            for name in (candidate.name for candidate in candidates[1:])
        ]

    return run


def _scanning(name: str, store: Any, data: Dataset) -> Candidate:
    return working(name, lambda: _counted(store.records()), data.count)


def _scanning_arrow(name: str, log: Sawlog, data: Dataset) -> Candidate:
    return working(name, lambda: _rows(log.arrow()), data.count)


def _arrow_against_lmdb(value_bytes: int, records: int, bar: Bar | None) -> Callable[[Bench], list[Row]]:
    def run(bench: Bench) -> list[Row]:
        data = Dataset(value_bytes, bench.scaled(records, records // 2))
        log, lmdb = bench.filled_log(data), bench.filled(Lmdb, data)
        _prove(log.arrow(), data)
        _prove(lmdb.arrow(ARROW_ROWS), data)
        candidates = [
            working("ours", lambda: _rows(log.arrow()), data.count),
            working("lmdb", lambda: _rows(lmdb.arrow(ARROW_ROWS)), data.count),
        ]
        best = best_of(candidates, bench.effort)
        ours, rival = (rate(Unit.RECORDS, best[name], data.count) for name in ("ours", "lmdb"))
        return [Row(f"scan to Arrow, {data.size}", ours, "LMDB to Arrow", rival, bar)]

    return run


def _arrow_limits(bench: Bench) -> list[Row]:
    """1 KiB values as Arrow, as views and raw, compared with copying as many bytes in memory."""
    data = Dataset(1024, bench.scaled(100_000, 50_000))
    log, size = bench.filled_log(data), data.payload_bytes
    _prove(log.arrow(views=True), data)
    stored = log.log.size_bytes
    candidates = [
        working("scan to Arrow, 1 KiB", lambda: _rows(log.arrow()), data.count),
        working("scan to Arrow views, 1 KiB", lambda: _rows(log.arrow(views=True)), data.count),
        working("fetch of 1 MiB, raw, 1 KiB", lambda: sum(log.fetched(1 << 20)), stored),
        memory_copy(size),
        checksum(size),
    ]
    best = best_of(candidates, bench.effort)
    columns, views, fetch = (rate(Unit.BYTES, best[each.name], size) for each in candidates[:3])
    copy, crc = (rate(Unit.BYTES, best[each.name], size) for each in candidates[3:])
    names = [each.name for each in candidates]
    return [
        Row(names[0], columns, "memory copy", copy, share(0.30), percent=True),
        Row(names[1], views, "memory copy", copy, share(0.55), percent=True),
        Row(names[2], fetch, "memory copy", copy, percent=True),
        Row(names[2], fetch, "CRC-32C", crc, percent=True),
    ]


def _small_batches(bench: Bench) -> list[Row]:
    data = Dataset(100, bench.scaled(30_000, 10_000))
    lmdb = bench.filled(Lmdb, data)
    candidates = [
        working("LMDB", lambda: _counted(lmdb.records()), data.count),
        working("LMDB to Arrow", lambda: _rows(lmdb.arrow(ARROW_ROWS)), data.count),
    ]
    names: list[tuple[str, str]] = []
    for records in (1, 100):
        log = bench.filled_log(data, records)
        what = f"batches of {records}, scan to "
        candidates.append(_scanning(f"{what}records", log, data))
        candidates.append(_scanning_arrow(f"{what}Arrow", log, data))
        names += [(f"{what}records", "LMDB"), (f"{what}Arrow", "LMDB to Arrow")]
    best = best_of(candidates, bench.effort)
    figures = {name: rate(Unit.RECORDS, sample, data.count) for name, sample in best.items()}
    bars = {"batches of 1, scan to records": times(1)}
    return [Row(what, figures[what], against, figures[against], bars.get(what)) for what, against in names]


def _compressed(bench: Bench) -> list[Row]:
    data = Dataset(100, bench.scaled(50_000, 30_000))
    candidates: list[Candidate] = []
    for codec in ("none", "lz4", "zstd"):
        log = bench.filled_log(data, compression=codec)
        candidates.append(_scanning(f"{codec}, scan to records", log, data))
        candidates.append(_scanning_arrow(f"{codec}, scan to Arrow", log, data))
    best = best_of(candidates, bench.effort)
    figures = {name: rate(Unit.RECORDS, sample, data.count) for name, sample in best.items()}
    return [
        Row(
            f"{codec}, scan to {form}",
            figures[f"{codec}, scan to {form}"],
            "uncompressed",
            figures[f"none, scan to {form}"],
        )
        for codec in ("lz4", "zstd")
        for form in ("records", "Arrow")
    ]


def _by_offset(bench: Bench) -> list[Row]:
    data = Dataset(100, bench.scaled(50_000, 30_000))
    rng = random.Random(7)
    offsets = [rng.randrange(data.count) for _ in range(bench.scaled(4000, 2000))]
    log = bench.filled_log(data)
    stores = [bench.filled(kind, data) for kind in (Lmdb, Rocks, Sqlite)]
    candidates = [_getting(log, offsets, lambda record: len(record.value))]
    candidates += [_getting(store, offsets, len) for store in stores[:2]]
    candidates.append(_getting(stores[2], offsets, lambda row: len(row[1])))
    best = best_of(candidates, bench.effort)
    figures = {name: Figure(Unit.SECONDS, sample.wall_s, sample.cpu_s) for name, sample in best.items()}
    bars = {Lmdb.name: at_most(Unit.SECONDS, 2.5e-6)}
    return [
        Row(
            "read by offset, batches of 1,000 (median)",
            figures[Sawlog.name],
            store.name,
            figures[store.name],
            bars.get(store.name),
        )
        for store in stores
    ]


def _getting(store: Any, offsets: list[int], size: Callable[[Any], int]) -> Candidate:
    """Records at random; the median of single reads, and the mean of their CPU time."""
    found: list[int] = []

    def measure() -> Sample:
        get, clock, took = store.get, time.perf_counter_ns, []
        found.clear()
        cpu = time.process_time()
        for offset in offsets:
            began = clock()
            record = get(offset)
            took.append(clock() - began)
            found.append(size(record))
        return Sample(median(took) / 1e9, (time.process_time() - cpu) / len(offsets))

    @contextmanager
    def trial() -> Iterator[Trial]:
        yield Trial(measure, lambda: expect(found, [100] * len(offsets), f"values from {store.name}"))

    return Candidate(store.name, trial)


def _as_laminarmq(bench: Bench) -> list[Row]:
    """The other half of laminarmq's own workload: read 10,000 records of 1120 bytes back."""
    data = Dataset(1120, 10_000)
    log, plain = bench.filled_log(data, 1), bench.filled(PlainFile, data)
    best = best_of([_scanning(store.name, store, data) for store in (log, plain)], bench.effort)
    ours, rival = (rate(Unit.RECORDS, best[store.name], data.count) for store in (log, plain))
    return [Row("scan, 10,000 × 1,120 B, batches of 1", ours, "plain file", rival)]


CASES = [
    Case("scan-100", _records(100, 50_000, {Lmdb.name: times(3.5)})),
    Case("scan-1k", _records(1024, 10_000, {})),
    Case("arrow-100", _arrow_against_lmdb(100, 100_000, times(12))),
    Case("arrow-1k", _arrow_against_lmdb(1024, 10_000, None)),
    Case("arrow-limits", _arrow_limits),
    Case("scan-small-batches", _small_batches),
    Case("scan-compressed", _compressed),
    Case("scan-laminarmq", _as_laminarmq),
    Case("read-by-offset", _by_offset),
]
