"""Appends that do not wait for the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import pyarrow as pa
from bench import Bench, Case
from dataset import BATCH_RECORDS, Dataset
from machine import plain_write
from ours import Sawlog
from rivals import Lmdb, PlainFile, Rocks, Sqlite
from rounds import Candidate, Trial, best_of, expect, timed
from rows import Bar, Row, Unit, rate, share, times

MIB = 1 << 20


def _appending(
    bench: Bench,
    kind: Callable[..., Any],
    data: Dataset,
    how: Callable[[Any, list[Any]], None],
    name: str,
    prepared: list[Any] | None = None,
    **settings: Any,
) -> Candidate:
    """Append a dataset to a new store; it has to be there afterwards.

    The first batch is not timed (and the rest is scaled up to the whole): stores make their buffers then, and a
    store that is in use has them.
    """
    batches: list[Any] = [] if prepared is None else prepared
    proven: list[bool] = []

    @contextmanager
    def trial() -> Iterator[Trial]:
        with bench.fresh(kind, **settings) as store:
            if not batches:
                batches.extend(store.prepared(data))
            how(store, batches[:1])

            def check() -> None:
                if not proven:  # reading everything back once is enough
                    expect(store.content(), data.content, f"content of {name}")
                    proven.append(True)

            whole = len(batches) / (len(batches) - 1)
            yield Trial(lambda: timed(lambda: how(store, batches[1:])).scaled(whole), check)

    return Candidate(name, trial)


def _append_many(store: Any, batches: list[Any]) -> None:
    store.append_many(batches)


def _append_each(store: Any, batches: list[Any]) -> None:
    store.append_each(batches)


def _against_all(bench: Bench, data: Dataset, what: str, how: Callable[..., None], bars: dict[str, Bar]) -> list[Row]:
    kinds = (Sawlog, Sqlite, Lmdb, Rocks, PlainFile)
    candidates = [_appending(bench, kind, data, how, kind.name) for kind in kinds]
    best = best_of(candidates, bench.effort)
    ours = rate(Unit.RECORDS, best[Sawlog.name], data.count)
    return [
        Row(what, ours, name, rate(Unit.RECORDS, best[name], data.count), bars.get(name))
        for name in (candidate.name for candidate in candidates[1:])
    ]


def _many(value_bytes: int, count: int) -> Callable[[Bench], list[Row]]:
    def run(bench: Bench) -> list[Row]:
        data = Dataset(value_bytes, bench.scaled(count, count // 2))
        bars = {Sqlite.name: times(20), Lmdb.name: times(5), Rocks.name: times(5)}
        return _against_all(bench, data, f"append_many of 1,000 × {data.size}", _append_many, bars)

    return run


def _each(value_bytes: int, count: int) -> Callable[[Bench], list[Row]]:
    def run(bench: Bench) -> list[Row]:
        data = Dataset(value_bytes, bench.scaled(count, count // 2))
        bars = {Sqlite.name: times(12), Lmdb.name: times(4)}
        return _against_all(bench, data, f"writer, one by one, {data.size}", _append_each, bars)

    return run


def _table(data: Dataset) -> pa.Table:
    """Ten batches as one table."""
    keys, values = zip(*data.batch, strict=True)
    return pa.table({"key": pa.array(keys * 10, pa.binary()), "value": pa.array(values * 10, pa.binary())})


def _limits(bench: Bench) -> list[Row]:
    """append_many and append_arrow, compared with a bare write of as many bytes."""
    rows: list[Row] = []
    for data in (Dataset(100, bench.scaled(100_000, 50_000)), Dataset(1024, bench.scaled(30_000, 20_000))):
        tables = [_table(data)] * (data.count // (10 * BATCH_RECORDS))
        chunk = bytes(data.payload_bytes // data.batches)
        candidates = [
            _appending(bench, Sawlog, data, _append_many, "append_many"),
            _appending(bench, Sawlog, data, Sawlog.append_arrow, "append_arrow", tables),
            plain_write(bench.directory, chunk, data.batches),
        ]
        best = best_of(candidates, bench.effort)
        limit = rate(Unit.BYTES, best["write"], data.payload_bytes)
        for name in ("append_many", "append_arrow"):
            ours = rate(Unit.BYTES, best[name], data.payload_bytes)
            rows.append(Row(f"{name}, {data.size}", ours, "write", limit, percent=True))
    return rows


def _compressed(bench: Bench) -> list[Row]:
    data = Dataset(100, bench.scaled(50_000, 20_000))
    candidates = [
        _appending(bench, Sawlog, data, _append_many, codec, compression=codec) for codec in ("none", "lz4", "zstd")
    ]
    best = best_of(candidates, bench.effort)
    plain = rate(Unit.RECORDS, best["none"], data.count)
    return [
        Row(f"append_many, {codec}, 100 B", rate(Unit.RECORDS, best[codec], data.count), "uncompressed", plain)
        for codec in ("lz4", "zstd")
    ]


def _stream(bench: Bench) -> list[Row]:
    chunk, count = bytes(range(256)) * (MIB // 256), bench.scaled(256, 96)
    proven: list[bool] = []

    @contextmanager
    def trial() -> Iterator[Trial]:
        with bench.fresh(Sawlog) as store:

            def check() -> None:
                expect(len(store.log), 1, "streamed records")
                if not proven:
                    value = store.log.read(0).value
                    expect((len(value), value[-MIB:]), (count * MIB, chunk), "the streamed record")
                    proven.append(True)

            yield Trial(lambda: timed(lambda: store.log.append_stream(repeat(chunk, count))), check)

    best = best_of([Candidate("stream", trial), plain_write(bench.directory, chunk, count)], bench.effort)
    ours, limit = (rate(Unit.BYTES, best[name], count * MIB) for name in ("stream", "write"))
    return [Row(f"append_stream, 1 MiB chunks, {count} MiB", ours, "write", limit, share(0.6), percent=True)]


def _one_call_each(bench: Bench) -> list[Row]:
    """10,000 records of 1120 bytes, segments of 10 MB, no sync: as laminarmq measures itself, which streams each record
    in 32 chunks of 35 bytes (`small-stream` is one call of that)."""
    data = Dataset(1120, 10_000)

    def each(store: Any, batches: list[Any]) -> None:
        for batch in batches:
            store.append_acknowledged(batch)

    def chunks(store: Sawlog, batches: list[Any]) -> None:
        for batch in batches:
            for value, key in batch:
                pieces = [value[at : at + 35] for at in range(0, len(value), 35)]
                store.log.append_stream(pieces, key)

    names = ("append", "append_stream, chunks of 35 B")
    candidates = [
        _appending(bench, Sawlog, data, each, names[0], segment_bytes=10_000_000),
        _appending(bench, Sawlog, data, chunks, names[1], segment_bytes=10_000_000),
        _appending(bench, PlainFile, data, each, PlainFile.name),
    ]
    best = best_of(candidates, bench.effort)
    rival = rate(Unit.RECORDS, best[PlainFile.name], data.count)
    return [
        Row(
            f"{name}, 10,000 × 1,120 B, 10 MB segments", rate(Unit.RECORDS, best[name], data.count), "plain file", rival
        )
        for name in names
    ]


CASES = [
    Case("append-many-100", _many(100, 30_000)),
    Case("append-many-1k", _many(1024, 10_000)),
    Case("writer-100", _each(100, 30_000)),
    Case("writer-1k", _each(1024, 10_000)),
    Case("append-limits", _limits),
    Case("append-compressed", _compressed),
    Case("append-stream", _stream),
    Case("append-laminarmq", _one_call_each),
]
