"""The cost of durability: every append is on the disk before it returns.

The disk is shared with other machines, so only wall time counts, and ratios count more than rates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench import Bench, Case
from dataset import Dataset
from ours import Sawlog
from rivals import Lmdb, PlainFile, Rocks, Sqlite
from rounds import Candidate, Trial, best_of, expect, timed
from rows import Row, Unit, rate, times

TASKS = 256


def _appending(bench: Bench, kind: Callable[..., Any], name: str, count: int) -> Candidate:
    """One after the other, each durable before the next."""

    @contextmanager
    def trial() -> Iterator[Trial]:
        with bench.fresh(kind, durable=True) as store:
            records = store.prepared(Dataset(100, 1000))[0][:count]
            yield Trial(
                lambda: timed(lambda: store.append_acknowledged(records)),
                lambda: expect(store.content(), (count, count * 108), f"content of {name}"),
            )

    return Candidate(name, trial)


def _single(bench: Bench) -> list[Row]:
    count = bench.scaled(150, 50)
    kinds = {"sqlite, FULL": Sqlite, "LMDB, sync": Lmdb, "RocksDB, sync": Rocks, "write + fdatasync": PlainFile}
    candidates = [_appending(bench, Sawlog, "ours", count)]
    candidates += [_appending(bench, kind, name, count) for name, kind in kinds.items()]
    best = best_of(candidates, bench.effort)
    ours = rate(Unit.RECORDS, best["ours"], count, waits=True)
    return [
        Row("append, durable, one writer", ours, name, rate(Unit.RECORDS, best[name], count, waits=True))
        for name in kinds
    ]


def _concurrent(bench: Bench) -> list[Row]:
    single, each = bench.scaled(200, 100), bench.scaled(40, 20)
    records = [(value, key) for key, value in Dataset(100, 1000).batch[:each]]

    async def everybody(log: Any) -> None:
        async def one() -> None:
            for value, key in records:
                await log.append_async(value, key)

        await asyncio.gather(*(one() for _ in range(TASKS)))

    @contextmanager
    def trial() -> Iterator[Trial]:
        with bench.fresh(Sawlog, durable=True) as store:

            def check() -> None:
                expect(store.content(), (TASKS * each, TASKS * each * 108), "content after concurrent appends")
                expect(store.log.durable_offset, TASKS * each, "durable records")

            yield Trial(lambda: timed(lambda: asyncio.run(everybody(store.log))), check)

    best = best_of([Candidate("tasks", trial), _appending(bench, Sawlog, "one", single)], bench.effort)
    ours = rate(Unit.RECORDS, best["tasks"], TASKS * each, waits=True)
    one = rate(Unit.RECORDS, best["one"], single, waits=True)
    return [Row(f"append_async, durable, {TASKS} tasks", ours, "one writer of ours", one, times(40))]


CASES = [Case("durable-single", _single), Case("durable-concurrent", _concurrent)]
