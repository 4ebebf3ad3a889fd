"""Act one: write the orders, one by one, through a buffered writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from sawlog import Log, LogConfig

from .disk import CountingDirectory
from .orders import COUNTRIES, ORDER_BYTES, orders
from .screen import Screen, size

_CHUNK = 10_000


@dataclass(slots=True)
class Written:
    """The orders that were written, to compare with the log's contents."""

    orders: int = 0
    value_bytes: int = 0
    cents_by_country: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(COUNTRIES), np.int64))


def config_for(events: int) -> LogConfig:
    """Return a segment size that gives about eight segments, even in a short tour."""
    return LogConfig(segment_bytes=min(max(events * ORDER_BYTES // 8, 16 << 10), 16 << 20))


def play(screen: Screen, path: Path, events: int) -> Written:
    """Write the orders and report the rate."""
    screen.act(
        "Write",
        f"{events:,} orders as JSON, appended one by one through log.writer(). The policy is the default: a batch is "
        "on the disk (fdatasync) before the next one begins.",
    )
    written = Written()
    directory = CountingDirectory(path)
    config = config_for(events)
    batch_bytes = min(128 << 10, config.segment_bytes // 8)
    began, appending = perf_counter(), 0.0
    with Log.open(directory, config) as log:
        with log.writer(batch_bytes) as writer, screen.progress(events) as bar:
            for first in range(0, events, _CHUNK):
                made = orders(first, min(first + _CHUNK, events), events)
                before = perf_counter()
                for value, key, timestamp in made.records:
                    writer.append(value, key, (), timestamp)
                appending += perf_counter() - before
                written.orders += len(made.records)
                written.value_bytes += made.value_bytes
                written.cents_by_country += made.cents_by_country
                bar.advance(len(made.records))
            before = perf_counter()
            writer.flush()
            appending += perf_counter() - before
        total = perf_counter() - began
        rate = screen.result("append through a writer", events, "orders", appending).per_second
        screen.print(
            f"{size(log.size_bytes)} in {len(log.segments)} segments, {directory.syncs:,} fdatasyncs. "
            f"{rate:,.0f} orders a second in append and flush; {events / total:,.0f} with making the JSON."
        )
        screen.check(
            len(log) == events and log.durable_offset == events,
            f"the log holds offsets 0 to {log.next_offset - 1:,}, all of them durable",
        )
    return written
