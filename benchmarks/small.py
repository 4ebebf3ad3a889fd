"""Small operations, one call at a time, next to the least work that each has to do.

A figure is the time of one call: the best of several rounds of thousands of calls, by wall and by CPU time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench import Bench, Case
from dataset import Dataset
from ours import Sawlog
from rounds import Candidate, Sample, Trial, best_of, expect, timed
from rows import Bar, Figure, Row, Unit, at_most, share

import sawlog
from sawlog.batch.build import encode
from sawlog.batch.checksum import crc32c

#: laminarmq streams its records of 1,120 bytes in such chunks.
CHUNKS = [bytes(35)] * 32


def _seconds(sample: Sample) -> Figure:
    return Figure(Unit.SECONDS, sample.wall_s, sample.cpu_s)


def _calling(name: str, made: Callable[[], Any], calls: int) -> Candidate:
    """Somebody who is called again and again; `made` gives (what to call, what to check, what to close)."""

    @contextmanager
    def trial() -> Iterator[Trial]:
        call, check, close = made()

        def work() -> None:
            for _ in range(calls):
                call()

        try:
            call()  # buffers are made at the first one
            yield Trial(lambda: timed(work).scaled(1 / calls), check)
        finally:
            close()

    return Candidate(name, trial)


def _writing(bench: Bench, size: int, calls: int) -> Callable[[], Any]:
    def made() -> Any:
        path = bench.path()
        fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        data = bytes(size)

        def close() -> None:
            os.close(fd)
            path.unlink()

        return partial(os.write, fd, data), lambda: expect(os.fstat(fd).st_size, (calls + 1) * size, "bytes"), close

    return made


def _appending(bench: Bench, call: Callable[[sawlog.Log], Callable[[], object]], calls: int) -> Callable[[], Any]:
    def made() -> Any:
        fresh = bench.fresh(Sawlog)
        log = fresh.__enter__().log
        return (
            call(log),
            lambda: expect(len(log), calls + 1, "records"),
            lambda: fresh.__exit__(None, None, None),
        )

    return made


def _producing(bench: Bench, value: bytes, calls: int) -> Callable[[], Any]:
    def made() -> Any:
        store = sawlog.open(bench.path())
        topic = store.create_topic("records", durability="os")
        return partial(topic.append, value), lambda: expect(len(topic.partition(0)), calls + 1, "records"), store.close

    return made


def _append(bench: Bench) -> list[Row]:
    value, calls = bytes(128), bench.scaled(5000, 2000)
    candidates = [
        _calling("write", _writing(bench, len(encode([value])), calls), calls),
        _calling("log", _appending(bench, lambda log: partial(log.append, value), calls), calls),
        _calling("topic", _producing(bench, value, calls), calls),
    ]
    best = {name: _seconds(sample) for name, sample in best_of(candidates, bench.effort).items()}
    return [
        Row("log.append, 128 B, no sync", best["log"], "os.write", best["write"], share(1 / 2.3), percent=True),
        Row("topic.append, 128 B, no sync", best["topic"], "log.append", best["log"], share(1 / 1.3), percent=True),
    ]


def _stream(bench: Bench) -> list[Row]:
    """laminarmq's own workload: records of 32 chunks of 35 bytes, without a sync."""
    calls, size = bench.scaled(3000, 1000), sum(map(len, CHUNKS))
    candidates = [
        _calling("write", _writing(bench, size, calls), calls),
        _calling("stream", _appending(bench, lambda log: partial(log.append_stream, CHUNKS), calls), calls),
    ]
    best = {name: _seconds(sample) for name, sample in best_of(candidates, bench.effort).items()}
    name = "append_stream, 32 chunks of 35 B, no sync"
    return [Row(name, best["stream"], "os.write", best["write"], at_most(Unit.SECONDS, 8e-6))]


def _short_stream(bench: Bench) -> list[Row]:
    """A stream that ends after one chunk, beside an append of the same value."""
    value, calls = bytes(128), bench.scaled(5000, 2000)
    candidates = [
        _calling("append", _appending(bench, lambda log: partial(log.append, value), calls), calls),
        _calling("stream", _appending(bench, lambda log: partial(log.append_stream, [value]), calls), calls),
    ]
    best = {name: _seconds(sample) for name, sample in best_of(candidates, bench.effort).items()}
    name = "append_stream, 1 chunk of 128 B, no sync"
    return [Row(name, best["stream"], "log.append", best["append"], share(1 / 1.5), percent=True)]


def _short_reads(bench: Bench) -> list[Row]:
    """Pages and scans of little, in a log of batches of one, across segments and within one."""
    with bench.fresh(Sawlog) as store:
        log = store.log
        for number in range(4000):
            log.append(bytes(512))
            if number % 1000 == 999:
                log.seal()
        page, calls = 128 << 10, bench.scaled(2000, 500)

        def reading(call: Callable[[], int], records: int) -> Callable[[], Any]:
            return lambda: (call, lambda: expect(call(), records, "records"), lambda: None)

        candidates = [
            _calling("page", reading(lambda: log.fetch(0, page).next_offset, 225), calls),
            _calling("boundary", reading(lambda: log.fetch(900, page).next_offset - 900, 225), calls),
            _calling("read", reading(lambda: len([log.read(0), log.read(1)]), 2), calls),
            _calling("slice", reading(lambda: len(log[0:2]), 2), calls),
            _calling("scan", reading(lambda: len(list(log.scan(0, max_bytes=1200))), 2), calls),
            _calling("records", reading(lambda: len(list(log.fetch(0, 1200).records())), 2), calls),
        ]
        best = {name: _seconds(sample) for name, sample in best_of(candidates, bench.effort).items()}
    few = at_most(Unit.SECONDS, 8e-6)
    within = "fetch within one segment"
    return [
        Row(
            "fetch of 128 KiB across a segment boundary",
            best["boundary"],
            within,
            best["page"],
            share(1 / 4),
            percent=True,
        ),
        Row("scan of 1,200 bytes, 2 records", best["scan"], "2 × read", best["read"], few),
        Row("log[0:2]", best["slice"], "2 × read", best["read"], few),
        Row("fetch of 1,200 bytes and its records", best["records"], "2 × read", best["read"], few),
    ]


def _fetch(batch_records: int, max_bytes: int) -> Callable[[Bench], list[Row]]:
    def run(bench: Bench) -> list[Row]:
        data = Dataset(100, bench.scaled(50_000, 30_000))
        log = bench.filled_log(data, batch_records).log
        rng = random.Random(5)
        starts = [rng.randrange(data.count) for _ in range(200)]
        size = sum(log.fetch(start, max_bytes).size_bytes for start in starts) // len(starts)
        sums = bytes(size)

        def fetching() -> Any:
            found: list[int] = []
            return (
                lambda: found.extend(log.fetch(start, max_bytes).size_bytes for start in starts),
                lambda: expect(sum(found[: len(starts)]) // len(starts), size, "bytes that were fetched"),
                lambda: None,
            )

        def summing() -> Any:
            return lambda: [crc32c(sums) for _ in starts], lambda: None, lambda: None

        candidates = [_calling("fetch", fetching, 20), _calling("CRC-32C", summing, 20)]
        best = {name: each.scaled(1 / len(starts)) for name, each in best_of(candidates, bench.effort).items()}
        bar = Bar(most=Figure(Unit.SECONDS, 6e-6 + 1.3 * best["CRC-32C"].wall_s))
        what = f"fetch of {max_bytes >> 10} KiB, batches of {batch_records:,}"
        return [Row(what, _seconds(best["fetch"]), "CRC-32C", _seconds(best["CRC-32C"]), bar)]

    return run


CASES = [
    Case("small-append", _append),
    Case("small-stream", _stream),
    Case("small-stream-short", _short_stream),
    Case("small-reads-short", _short_reads),
    Case("small-fetch-1k", _fetch(1000, 1 << 10)),
    Case("small-fetch-256k", _fetch(1000, 1 << 18)),
    Case("small-fetch-1k-single", _fetch(1, 1 << 10)),
    Case("small-fetch-256k-single", _fetch(1, 1 << 18)),
]
